// The Node SDKs of OpenAI, Anthropic and Ollama against a server: node with_node_sdks.mjs http://127.0.0.1:8080 [SCENE …]
// Runs in the folder that has node_modules: npm install openai @anthropic-ai/sdk ollama zod
// Each scene prints one line of JSON: what was seen, or what failed; then the exit code is 1.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [root, ...chosen] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${root}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: root, apiKey: "none", maxRetries: 0 });
const ollama = new Ollama({ host: root });
const model = "default";
const asked = [{ role: "user", content: "How wet is Köln? Ask the tool." }];
const PLACE = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = { name: "weather", description: "Rain in a city.", parameters: PLACE };
const Rain = z.object({ city: z.string(), rain_mm: z.number().int() });
const rainOf = ({ city }) => JSON.stringify({ city, rain_mm: 5 });

function check(holds, what) {
  if (!holds) throw new Error(`not seen: ${what}`);
}

async function failing(work) {
  try {
    await work();
  } catch (error) {
    return error;
  }
  throw new Error("no error was raised");
}

const scenes = {
  async openai_models() {
    return (await openai.models.list()).data.map((each) => each.id).slice(0, 3);
  },
  async openai_chat() {
    const whole = await openai.chat.completions.create({ model, messages: asked, max_tokens: 20 });
    return [whole.choices[0].finish_reason, whole.choices[0].message.content, whole.usage];
  },
  async openai_stream() {
    const given = { model, messages: asked, max_tokens: 20, stream: true, stream_options: { include_usage: true } };
    let text = "";
    let usage = null;
    for await (const chunk of await openai.chat.completions.create(given)) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    return [text, usage];
  },
  async openai_tools() {
    const tool = {
      type: "function",
      function: { ...weather, function: rainOf, parse: JSON.parse },
    };
    const runner = openai.chat.completions.runTools({ model, messages: asked, tools: [tool], stream: true, max_tokens: 60 });
    const final = await runner.finalContent();
    check(runner.messages.some((each) => each.role === "tool"), "a call");
    return final;
  },
  async openai_parsed() {
    const messages = [{ role: "user", content: "Rain as JSON" }];
    const format = zodResponseFormat(Rain, "rain");
    const whole = await openai.chat.completions.parse({ model, messages, response_format: format });
    return whole.choices[0].message.parsed;
  },
  async openai_responses() {
    const tools = [{ type: "function", strict: false, ...weather }];
    const first = await openai.responses.create({ model, input: asked, tools });
    const call = first.output.find((each) => each.type === "function_call");
    check(call, "a call");
    const output = { type: "function_call_output", call_id: call.call_id, output: rainOf(JSON.parse(call.arguments)) };
    const stream = openai.responses.stream({ model, input: [output], previous_response_id: first.id, tools });
    const kinds = new Set();
    for await (const event of stream) kinds.add(event.type);
    const last = await stream.finalResponse();
    return [last.output_text, last.usage.input_tokens_details.cached_tokens, [...kinds]];
  },
  async openai_responses_parsed() {
    const text = { format: zodTextFormat(Rain, "rain") };
    return (await openai.responses.parse({ model, input: "Rain as JSON", text })).output_parsed;
  },
  async openai_abort() {
    const messages = [{ role: "user", content: "Count on." }];
    const stream = await openai.chat.completions.create({ model, messages, stream: true });
    let n = 0;
    for await (const chunk of stream) if (chunk && ++n === 5) break;
    return n;
  },
  async openai_error() {
    const error = await failing(() => openai.chat.completions.create({ model, messages: asked, temperature: -1 }));
    check(error instanceof OpenAI.BadRequestError, "BadRequestError");
    return [error.status, error.message];
  },
  async anthropic_message() {
    const whole = await anthropic.messages.create({ model, max_tokens: 20, messages: asked });
    return [whole.content, whole.stop_reason, whole.usage];
  },
  async anthropic_stream() {
    const stream = anthropic.messages.stream({ model, max_tokens: 20, messages: asked });
    let text = "";
    stream.on("text", (piece) => (text += piece));
    const last = await stream.finalMessage();
    check((last.content[0].text ?? "") === text, "the whole text");
    return [text, last.stop_reason, last.usage];
  },
  async anthropic_tools() {
    const run = (input) => rainOf(input);
    const tool = betaZodTool({ name: "weather", description: "Rain.", inputSchema: z.object({ city: z.string() }), run });
    const runner = anthropic.beta.messages.toolRunner({ model, max_tokens: 100, messages: asked, tools: [tool], stream: true });
    const seen = [];
    for await (const stream of runner) seen.push((await stream.finalMessage()).content.map((each) => each.type));
    check(seen[0].includes("tool_use"), "a call");
    return seen;
  },
  async anthropic_count() {
    return anthropic.messages.countTokens({ model, messages: asked, system: "Be brief." });
  },
  async anthropic_error() {
    const error = await failing(() => anthropic.messages.create({ model, max_tokens: -1, messages: asked }));
    check(error instanceof Anthropic.BadRequestError, "BadRequestError");
    return [error.status, error.error.error.type, error.message];
  },
  async ollama_chat() {
    const whole = await ollama.chat({ model, messages: asked, options: { num_predict: 20 } });
    return [whole.message, whole.done_reason, whole.prompt_eval_count, whole.eval_count];
  },
  async ollama_tools() {
    const tools = [{ type: "function", function: weather }];
    const messages = [...asked];
    let calls = [];
    for await (const part of await ollama.chat({ model, messages, tools, stream: true })) {
      calls = [...calls, ...(part.message.tool_calls ?? [])];
    }
    check(calls.length, "a call");
    messages.push({ role: "assistant", content: "", tool_calls: calls });
    for (const { function: call } of calls) {
      messages.push({ role: "tool", tool_name: call.name, content: rainOf(call.arguments) });
    }
    return [calls, (await ollama.chat({ model, messages, tools })).message.content];
  },
  async ollama_format() {
    const messages = [{ role: "user", content: "Rain as JSON" }];
    const whole = await ollama.chat({ model, messages, format: z.toJSONSchema(Rain) });
    return Rain.parse(JSON.parse(whole.message.content));
  },
  async ollama_generate() {
    let text = "";
    for await (const part of await ollama.generate({ model, prompt: "Once", stream: true, options: { num_predict: 8 } })) {
      text += part.response;
    }
    return text;
  },
  async ollama_lists() {
    const [tags, ps, show] = [await ollama.list(), await ollama.ps(), await ollama.show({ model })];
    return [tags.models.length, ps.models.map((each) => each.name), show.capabilities, await ollama.version()];
  },
  async ollama_abort() {
    const stream = await ollama.chat({ model, messages: [{ role: "user", content: "Count on." }], stream: true });
    setTimeout(() => stream.abort(), 300);
    const error = await failing(async () => {
      for await (const part of stream) part;
    });
    return error.name;
  },
  async ollama_error() {
    const error = await failing(() => ollama.chat({ model, messages: asked, options: { mirostat: 2 } }));
    return [error.name, error.status_code, error.message];
  },
};

for (const [scene, run] of Object.entries(scenes)) {
  if (chosen.length && !chosen.includes(scene)) continue;
  try {
    console.log(JSON.stringify({ scene, seen: await run() }));
  } catch (reason) {
    console.log(JSON.stringify({ scene, failed: String(reason).slice(0, 600) }));
    process.exitCode = 1;
  }
}
