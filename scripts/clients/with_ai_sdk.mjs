// AI SDK over @ai-sdk/openai-compatible, or over what AI_SDK_PROVIDER names: openai, anthropic, ollama.
// Runs in the folder that has node_modules; scenes as in agent_parts.py.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

const BRIEF = "Answer briefly, and use the tools.";
const FIRST = "How wet is Köln?";
const NEXT = "And <b>now</b>?";
const LATE = "From here on, answer in German.";
const PARTS = ["Look at both:", "Köln and {{ Rome }}."];
const RAIN = {
  type: "object",
  properties: { city: { type: "string" }, rain_mm: { type: "integer" } },
  required: ["city", "rain_mm"],
  additionalProperties: false,
};
const PLACE = {
  type: "object",
  properties: {
    city: { type: "string", description: "Its name." },
    days: { type: "integer", description: "How many days." },
  },
  required: ["city", "days"],
};
const tools = {
  weather: tool({
    description: "Rain in a city in the next days.",
    inputSchema: jsonSchema(PLACE),
    execute: async ({ city, days }) => {
      if (city === "Atlantis") throw new Error("there is no Atlantis");
      return { city, days, rain_mm: 5 };
    },
  }),
  clock: tool({
    description: "The time.",
    inputSchema: jsonSchema({ type: "object", properties: {} }),
    execute: async () => "12:00 «noon»",
  }),
};

const providers = {
  compatible: async (baseURL) => {
    const shape = { name: "local", includeUsage: true, supportsStructuredOutputs: true };
    return createOpenAICompatible({ ...shape, baseURL, apiKey: "none" });
  },
  openai: async (baseURL) => (await import("@ai-sdk/openai")).createOpenAI({ baseURL, apiKey: "none" }),
  anthropic: async (baseURL) => (await import("@ai-sdk/anthropic")).createAnthropic({ baseURL, apiKey: "none" }),
  ollama: async (address) => {
    const { createOllama } = await import("ollama-ai-provider-v2");
    return createOllama({ baseURL: address.replace(/v1$/, "api") });
  },
};

async function ask(mode, address, messages, options) {
  const provider = await providers[process.env.AI_SDK_PROVIDER ?? "compatible"](address);
  const given = {
    model: provider("test-model"),
    messages,
    maxRetries: 0,
    maxOutputTokens: 200,
    stopWhen: stepCountIs(6),
    allowSystemInMessages: true,
    ...options,
  };
  if (mode === "whole") {
    const result = await generateText(given);
    return { messages: [...messages, ...result.response.messages], steps: result.steps };
  }
  let failure = null;
  const result = streamText({ ...given, onError: ({ error }) => (failure = error) });
  await result.consumeStream();
  if (failure) throw failure;
  return { messages: [...messages, ...(await result.response).messages], steps: await result.steps };
}

async function run(scene, mode, address) {
  let messages = [
    { role: "system", content: BRIEF },
    { role: "user", content: FIRST },
  ];
  const options = scene === "plain" ? {} : { tools };
  if (scene === "instructions") messages[1].content = PARTS.map((text) => ({ type: "text", text }));
  if (scene === "structured") options.output = Output.object({ schema: jsonSchema(RAIN), name: "rain" });
  const choice = { required: "required", named: { type: "tool", toolName: "clock" } }[scene];
  if (choice) {
    options.toolChoice = choice;
    options.prepareStep = ({ stepNumber }) => (stepNumber ? { toolChoice: "auto" } : {});
  }
  const first = await ask(mode, address, messages, options);
  let steps = first.steps;
  if (["plain", "thoughts", "instructions"].includes(scene)) {
    messages = first.messages;
    if (scene === "instructions") messages.push({ role: "system", content: LATE });
    messages.push({ role: "user", content: NEXT });
    steps = [...steps, ...(await ask(mode, address, messages, options)).steps];
  }
  return steps.map((step) => [step.text, step.toolCalls.map((call) => [call.toolName, call.input])]);
}

const [address, ...chosen] = process.argv.slice(2);
for (const scene of ["plain", "tools", "thoughts", "structured", "instructions", "required", "named"]) {
  for (const mode of ["whole", "stream"]) {
    if (chosen.length && !chosen.includes(scene)) continue;
    const place = address.replace("{scene}", scene).replace("{mode}", mode);
    try {
      console.log(JSON.stringify({ scene, mode, seen: await run(scene, mode, place) }));
    } catch (reason) {
      console.log(JSON.stringify({ scene, mode, failed: String(reason).slice(0, 600) }));
    }
  }
}
