// A chat and its branches: the same record as `edgeinfer chat` exports, so that either opens what the other has written.
// In: records. Out: records, messages for the server, text of files. Knows no page and no storage.

import { attachmentsOf, contentOf, documentOf, fenced } from "./attachments.js";

export const FORMAT = 1;
export const SETTINGS = Object.freeze({
  model: "", temperature: null, top_p: null, max_tokens: null, thinking: "", tools: "", mcp: true,
});
const TITLE_CHARACTERS = 60;
const ROLES = ["user", "assistant", "summary"];
const HEADINGS = { user: "User", assistant: "Assistant", summary: "Summary", tool: "Tool result" };
const now = () => Date.now() / 1000;

/** A random name; `crypto.randomUUID` is missing where a page comes without HTTPS from another computer. */
export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** An empty chat. */
export function newChat(system = "", settings = SETTINGS) {
  return {
    edgeinfer_chat: FORMAT, id: newId(), title: "", system: system || null, model: settings.model || null,
    leaf: null, created_s: now(), changed_s: now(), settings: { ...SETTINGS, ...settings }, messages: [],
  };
}

/** Add a message after `parent` (null: the first one); it becomes the end of the branch that is shown. */
export function add(chat, parent, role, text, more = {}) {
  const number = 1 + Math.max(0, ...chat.messages.map((message) => message.number));
  const message = { number, parent, role, text, state: "whole", created_s: now(), model: null, figures: null, ...more };
  chat.messages.push(message);
  chat.leaf = number;
  if (!chat.title && role === "user") chat.title = (text.trim().split("\n")[0] || more.attachments?.[0]?.name || "").slice(0, TITLE_CHARACTERS);
  return message;
}

/** The message of a number. */
export const messageOf = (chat, number) => chat.messages.find((message) => message.number === number);

/** The branch that is shown, from its first message. */
export function branch(chat, leaf = chat.leaf) {
  const byNumber = new Map(chat.messages.map((message) => [message.number, message]));
  const found = [];
  for (let at = byNumber.get(leaf); at; at = byNumber.get(at.parent)) found.unshift(at);
  return found;
}

/** The messages that stand in the same place as this one, itself included, in order of creation. */
export const siblings = (chat, message) => chat.messages.filter((other) => other.parent === message.parent);

/** Show the branch that is `step` siblings further, with the newest messages after it; the sibling. */
export function turn(chat, message, step) {
  const all = siblings(chat, message), next = all[all.indexOf(message) + step];
  if (!next) return message;
  showBranchOf(chat, next);
  return next;
}

/** Show the branch of a message, with the newest messages after it. */
export function showBranchOf(chat, message) {
  let leaf = message;
  for (let child; (child = chat.messages.findLast((one) => one.parent === leaf.number)); ) leaf = child;
  chat.leaf = leaf.number;
}

/** Remove a message and all after it; what stands before it ends the branch that is shown. */
export function remove(chat, message) {
  const all = siblings(chat, message), place = all.indexOf(message);
  const gone = new Set([message.number]);
  for (const one of chat.messages) if (gone.has(one.parent)) gone.add(one.number);
  if (all.length > 1) turn(chat, message, place ? -1 : 1);
  else chat.leaf = message.parent;
  chat.messages = chat.messages.filter((one) => !gone.has(one.number));
}

/** A branch in the form of /v1/chat/completions. */
export function requestMessages(chat, leaf = chat.leaf) {
  const system = chat.system ? [{ role: "system", content: chat.system }] : [];
  return [...system, ...branch(chat, leaf).map((message) => {
    if (message.tool_call_id) {
      return { role: "tool", tool_call_id: message.tool_call_id, name: message.name, content: message.text };
    }
    const sent = { role: message.role === "assistant" ? "assistant" : "user", content: contentOf(message) };
    if (message.thoughts) sent.reasoning_content = message.thoughts;
    if (message.tool_calls?.length) sent.tool_calls = message.tool_calls.map(({ id, type, function: called }) => ({ id, type, function: called }));
    return sent;
  })];
}

/**
 * The body of a request that goes on after `leaf`; `offered`: further functions that the answer may call, unless the
 * chat's own have their names. Throws an Error whose message says what is wrong in the settings.
 */
export function requestBody(chat, leaf, offered = []) {
  const { model, temperature, top_p, max_tokens, thinking, tools } = chat.settings;
  const body = { messages: requestMessages(chat, leaf), stream: true, stream_options: { include_usage: true }, return_progress: true };
  if (model) body.model = model;
  for (const [name, value] of Object.entries({ temperature, top_p, max_tokens })) if (value !== null) body[name] = value;
  if (thinking) body.enable_thinking = thinking === "on";
  const own = tools.trim() ? toolsOf(tools) : [], names = new Set(own.map((tool) => tool.function.name));
  const all = [...own, ...offered.filter(({ name }) => !names.has(name)).map((called) => ({ type: "function", function: called }))];
  if (all.length) body.tools = all;
  return body;
}

/** The tools that a text of JSON describes. Throws an Error that says what is wrong. */
export function toolsOf(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (reason) {
    throw new Error(`the tools are not valid JSON: ${reason.message}`, { cause: reason });
  }
  const list = Array.isArray(found) ? found : [found];
  return list.map((tool) => {
    const described = tool?.function ?? tool;
    if (typeof described?.name !== "string") throw new Error('a tool has no "name"');
    return { type: "function", function: described };
  });
}

/** Statistics of an answer, in the app's names, from the timings and the finish reason of a stream. */
export function figuresOf(timings, finishReason) {
  return {
    n_prompt: timings.cache_n + timings.prompt_n, n_cached: timings.cache_n, n_generated: timings.predicted_n,
    finish_reason: finishReason, truncated: false, ttft_s: timings.prompt_ms ? timings.prompt_ms / 1000 : null,
    prefill_tok_s: timings.prompt_per_second || null, decode_tok_s: timings.predicted_per_second || null,
  };
}

/** A chat as a file of JSON with all branches, which the page and `edgeinfer chat` import. */
export function toJson(chat) {
  const { settings: { tools, ...settings }, ...kept } = chat;
  const messages = chat.messages.map((message) => (message.state === "writing" ? { ...message, state: "stopped", stream: undefined } : message));
  return `${JSON.stringify({ ...kept, settings: { ...settings, tools }, messages }, null, 1)}\n`;
}

/** A chat from a file of JSON. Throws an Error that says what is wrong. */
export function fromJson(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (reason) {
    throw new Error(`this is not valid JSON: ${reason.message}`, { cause: reason });
  }
  if (found?.edgeinfer_chat !== FORMAT || !Array.isArray(found.messages)) {
    throw new Error("this is not a chat that edgeinfer exported as JSON");
  }
  const chat = newChat(wordsAt(found, "system"), settingsOf(found.settings));
  chat.title = wordsAt(found, "title") || "Imported chat";
  chat.created_s = Number(found.created_s) || chat.created_s;
  const seen = new Set([null]), withCalls = [];
  for (const message of found.messages) {
    if (!Number.isSafeInteger(message?.number) || seen.has(message.number) || !seen.has(message.parent ?? null)) {
      throw new Error("a message has no number of its own, or its parent is no message before it");
    }
    if (!ROLES.includes(message.role)) throw new Error(`message ${message.number} has no role that there is`);
    seen.add(message.number);
    const { rounds, ...kept } = message, attachments = attachmentsOf(message.attachments, `message ${message.number}`);
    chat.messages.push({ ...kept, parent: message.parent ?? null, text: wordsAt(message, "text"), attachments });
    if (Array.isArray(rounds)) withCalls.push([chat.messages.at(-1), rounds]);
  }
  for (const [message, rounds] of withCalls) putRoundsBefore(chat, message, rounds);
  chat.leaf = seen.has(found.leaf) && found.leaf ? found.leaf : (chat.messages.at(-1)?.number ?? null);
  return chat;
}

/** The app keeps calls of tools with their answer; here they are messages before it. */
function putRoundsBefore(chat, answer, rounds) {
  const { leaf } = chat, { created_s, model } = answer;
  let { parent } = answer;
  for (const { text, thoughts, calls } of rounds) {
    const made = calls.map(({ name, arguments: args, result, failed }, place) => ({
      id: `call_${answer.number}_${place}`, type: "function", function: { name, arguments: args }, result: { text: result, failed },
    }));
    parent = add(chat, parent, "assistant", text, { created_s, model, thoughts, tool_calls: made }).number;
    for (const { id, function: { name }, result } of made) {
      parent = add(chat, parent, "user", result.text, { created_s, tool_call_id: id, name, failed: result.failed }).number;
    }
  }
  Object.assign(answer, { parent });
  chat.leaf = leaf;
}

const wordsAt = (record, key) => (typeof record[key] === "string" ? record[key] : "");

function settingsOf(found) {
  const kinds = { model: "string", temperature: "number", top_p: "number", max_tokens: "number", thinking: "string", tools: "string", mcp: "boolean" };
  const fits = ([name, kind]) => typeof found?.[name] === kind;
  return Object.fromEntries(Object.entries(kinds).filter(fits).map(([name]) => [name, found[name]]));
}

/** The branch that is shown as readable Markdown. */
export function toMarkdown(chat) {
  const parts = [`# ${chat.title || "Chat"}`];
  if (chat.system) parts.push(`## System\n\n${chat.system}`);
  for (const message of branch(chat)) {
    const heading = HEADINGS[message.tool_call_id ? "tool" : message.role];
    const calls = (message.tool_calls ?? []).map((call) =>
      `Call of ${call.function.name}:\n\n${fenced(call.function.arguments, "json")}`);
    const about = message.tool_call_id ? ` of ${message.name}` : message.model ? ` (${message.model})` : "";
    const files = (message.attachments ?? []).map(documentOf);
    parts.push([`## ${heading}${about}`, ...files, message.text, ...calls].filter(Boolean).join("\n\n"));
  }
  return `${parts.join("\n\n")}\n`;
}

/** A name for a file of the chat, without its suffix. */
export const fileStem = (chat) =>
  chat.title.replace(/[\\/:*?"<>|\s]+/g, " ").replace(/\p{Cc}|\p{Cf}/gu, "").replace(/^[ .]+|[ .]+$/g, "") || "chat";
