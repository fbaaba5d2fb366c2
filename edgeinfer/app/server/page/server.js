// Requests to the server that this page came from. The API key, if the server has one, stays in this tab's
// sessionStorage and goes nowhere else.
// In: paths, bodies. Out: records; what a stream says, piece by piece.

const KEY = "edgeinfer.key";
const AGAIN_MS = 500; // between two questions whether an answer has begun

/** The server refuses a request. `status`: 0 if it was not reached. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The connection has broken in the middle of an answer. */
export class Broken extends Refused {
  constructor() {
    super("the connection broke before the answer's end", 0);
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const keepKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** Ask the server; `more`: further headers, or another method. Throws Refused, and AbortError if `signal` stops it. */
async function ask(path, body, signal, { headers: further = {}, ...more } = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...(body ? { "Content-Type": "application/json" } : {}), ...further };
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, ...more });
  } catch (reason) {
    if (reason.name === "AbortError") throw reason;
    throw new Refused("the server does not answer; is `edgeinfer serve` still running?", 0);
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  throw new Refused(found?.error?.message ?? `the server answers with ${response.status}`, response.status);
}

/** The models on the server's computer, the default one first. */
export async function models() {
  return (await (await ask("v1/models")).json()).data;
}

/** The tools of MCP servers: {tools, failures}, both empty if the server was started without any. */
export async function mcpTools(signal) {
  return (await ask("mcp/tools", undefined, signal)).json();
}

/** Have a tool called: {text, failed}. Throws Refused, and AbortError if it is stopped. */
export async function callTool(name, args, signal) {
  return (await ask("mcp/call", { name, arguments: args }, signal)).json();
}

/** Stream an answer, which goes on under `id` if this page leaves; `take` gets every chunk. Throws as `ask`, and Broken. */
export async function answer(id, body, signal, take) {
  await chunks(await ask("v1/chat/completions", body, signal, { headers: { "X-Conversation-Id": id } }), take);
}

/** Stream an answer again from its beginning, and what comes; `begin` is called when it is there. Throws as `answer`. */
export async function answerAgain(id, signal, begin, take) {
  for (;;) {
    try {
      const response = await ask(streamOf(id), null, signal);
      begin();
      return await chunks(response, take);
    } catch (failure) {
      if (failure.status !== 503) throw failure; // a model that is still being loaded, or a queue
    }
    await new Promise((go) => setTimeout(go, AGAIN_MS));
  }
}

/** Have the server stop an answer, and forget it. */
export const forgetAnswer = (id) => ask(streamOf(id), null, undefined, { method: "DELETE", keepalive: true }).catch(() => null);

const streamOf = (id) => `v1/stream?conv_id=${encodeURIComponent(id)}`;

async function chunks(response, take) {
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(chunk.error.message, chunk.error.status ?? 500);
      take(chunk);
    }
  } catch (failure) {
    if (failure instanceof Refused || failure.name === "AbortError") throw failure;
    throw new Broken();
  }
  throw new Broken();
}

/** The data of the server-sent events in a stream of bytes. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    await reader.cancel().catch(() => {}); // stopped in the middle: the server stops too
  }
}
