// A Node program that has a model beside it: starts the server, streams an answer, and leaves nothing behind.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { createInterface } from "node:readline";

const question = process.argv[2] ?? "Hi";
const command = process.env.EDGEINFER_COMMAND ?? "edgeinfer"; // a program's path, or a JSON list: a program and arguments
const [program, ...first] = command.startsWith("[") ? JSON.parse(command) : [command];
const key = randomBytes(24).toString("hex"); // nobody else on this computer can ask
const options = ["serve", "--port", "0", "--ready-json", "--token-env", "SIDECAR_KEY", "--parent-pid", `${process.pid}`];
const server = spawn(program, [...first, ...options], {
  env: { ...process.env, SIDECAR_KEY: key },
  stdio: ["ignore", "pipe", "inherit"],
});
const failed = new Promise((_, reject) => server.on("error", reject)); // it cannot be started

async function ready() {
  for await (const line of createInterface({ input: server.stdout })) return JSON.parse(line);
  throw new Error("the server ended before it was ready");
}

async function* answer(url) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${key}` },
    body: JSON.stringify({ messages: [{ role: "user", content: question }], stream: true, max_tokens: 200 }),
  });
  if (!response.ok) throw new Error(await response.text());
  let held = "";
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (held + bytes).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: {")) continue;
      const { choices, error } = JSON.parse(line.slice(6));
      if (error) throw new Error(error.message);
      yield choices[0]?.delta.content ?? "";
    }
  }
}

try {
  const { url } = await Promise.race([ready(), failed]);
  for await (const piece of answer(url)) process.stdout.write(piece);
  process.stdout.write("\n");
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
} finally {
  server.kill();
}
