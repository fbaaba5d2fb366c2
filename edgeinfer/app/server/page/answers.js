// An answer while it comes: deltas and progress of a stream in the record of its message.
// In: chunks of /v1/chat/completions. Out: a changed message; words and a share that say how far it is.

import { figuresOf } from "./chats.js";
import { whole } from "./numbers.js";
import * as server from "./server.js";

/** How much of an answer there is. */
export const sizeOf = ({ text, thoughts, tool_calls }) => text.length + (thoughts?.length ?? 0) + (tool_calls?.length ?? 0);

/** What is kept of a message's stream, so that it can be taken up: its id, and what was there before. */
export const newStream = (id, { text, thoughts }) => ({ id, text: text.length, thoughts: thoughts?.length ?? 0 });

/** Take back what a stream has added to a message, before it is told again. */
function rewind(message) {
  const { text, thoughts } = message.stream;
  Object.assign(message, { text: message.text.slice(0, text), thoughts: message.thoughts?.slice(0, thoughts) || undefined });
  delete message.tool_calls;
}

/**
 * Fill the message of `running` from the server; its state says how that has ended. `body`: the request; null: its
 * stream is taken up. `withKey`: asks for the key where it is missing; `come`: called after each chunk.
 */
export async function stream(running, body, withKey, come) {
  const { message, abort } = running, { id } = message.stream;
  let reason = null;
  const take = (chunk) => {
    const [choice] = chunk.choices;
    running.hasBegun = true;
    running.read = chunk.prompt_progress ?? running.read;
    message.model = chunk.model ?? message.model;
    if (choice?.delta) extend(message, choice.delta);
    reason = choice?.finish_reason ?? reason;
    if (chunk.timings) message.figures = figuresOf(chunk.timings, reason);
    come();
  };
  const again = () => withKey(() => server.answerAgain(id, abort.signal, () => rewind(message), take));
  try {
    if (body) {
      await withKey(() => server.answer(id, body, abort.signal, take)).catch((failure) => {
        if (!(failure instanceof server.Broken)) throw failure;
        return again().catch((later) => { throw [0, 404].includes(later.status) ? failure : later; });
      });
    } else await again();
    message.state = reason === "length" ? "cut" : "whole";
  } catch (failure) {
    const isGone = !body && failure.status === 404; // the server was started again, or has forgotten it
    message.state = failure.name === "AbortError" || isGone ? "stopped" : "failed";
    if (message.state === "failed") message.fault = failure.message;
  }
}

/** Add a delta of a stream to a message. */
function extend(message, delta) {
  message.text += delta.content ?? "";
  if (delta.reasoning_content) message.thoughts = (message.thoughts ?? "") + delta.reasoning_content;
  for (const { index, id, type = "function", function: called } of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[index] ??= { id, type, function: { name: "", arguments: "" } });
    call.function.name += called.name ?? "";
    call.function.arguments += called.arguments ?? "";
  }
}

/** How far an answer is: {note, share}; `share` of the prompt that was read, null where that says nothing. */
export function stageOf({ message, began, doing, hasBegun, nBefore, read, loading }) {
  const seconds = Math.round((performance.now() - began) / 1000);
  const { text, share = null } = doing ? { text: doing } : stage(message, hasBegun, nBefore, read, loading);
  return { note: `${text} … ${seconds} s`, share };
}

function stage(message, hasBegun, nBefore, read, loading) {
  if (sizeOf(message) > nBefore) return { text: "writing" };
  if (!hasBegun) return { text: loading || "waiting for the model" };
  if (!read) return { text: "reading the prompt" };
  const { processed, total } = read;
  return processed < total ? { text: `reading ${whole(processed)} of ${whole(total)} tokens`, share: processed / total } : { text: "beginning to write" };
}
