// Calls of tools that MCP servers make: asked for, made one after another, their results given to the model.
// In: answers with calls, what the person says. Out: results in the calls (`result`), then the next answer.

import * as server from "./server.js";
import * as storage from "./storage.js";
import { branch } from "./chats.js";

const MOST_ROUNDS = 8; // answers after one question whose calls need no permission
const REFUSED = "The user did not allow this call.";
const STOPPED = "The user stopped this call.";
const keyOf = (tool) => `${tool.server}/${tool.tool}`;

export class Calls {
  /** `page`: what shows and keeps chats, and answers. */
  constructor(page) {
    this.page = page;
    this.tools = new Map();
    this.failures = [];
    this.isFound = false;
  }

  /** Whether answers of a chat should wait for tools that start, or are tried again. */
  isMissing = (chat) => chat.settings.mcp !== false && (!this.isFound || this.failures.length > 0);

  /** Ask the server for its tools, for which it tries those again that failed; what is new about them, in words. */
  async find(signal) {
    const had = new Set(this.servers()), before = this.failures;
    const { tools, failures } = await server.mcpTools(signal);
    this.tools = new Map(tools.map((tool) => [tool.name, tool]));
    this.failures = failures;
    this.isFound = true;
    const begun = before.length ? this.servers().filter((name) => !had.has(name)) : [], told = failures.join("; ");
    return [
      ...(begun.length ? [`Tools have started: ${begun.join(", ")}`] : []),
      ...(told && told !== before.join("; ") ? [`Tools are missing: ${told}`] : []),
    ].join(". ");
  }

  servers = () => [...new Set([...this.tools.values()].map((tool) => tool.server))];

  /** The functions that answers of a chat may call. */
  offered = (chat) => (chat.settings.mcp === false ? [] : [...this.tools.values()].map((tool) => tool.function));

  /** The tool that a call is of; undefined if the person writes its result. */
  toolOf = (call) => this.tools.get(call.function.name);

  /** All tools, with whether they are called without a question, and whether the server's user has said so. */
  list() {
    const trusted = storage.trusted();
    return [...this.tools.values()].map((tool) => ({
      key: keyOf(tool), description: tool.function.description, isFixed: tool.trusted, isTrusted: tool.trusted || trusted.has(keyOf(tool)),
    }));
  }

  /** Make the calls of an answer that need no question, then answer with the results once all are there. */
  async goOn(message) {
    const { page } = this, { chat } = page;
    for (const call of message.tool_calls) {
      if (call.result || !this.mayCall(chat, call)) continue;
      if (!(await this.make(message, call)) || page.chat !== chat) return;
    }
    if (message.tool_calls.every((call) => call.result)) page.sendResults(message);
    else page.show();
  }

  mayCall(chat, call) {
    const tool = this.toolOf(call), shown = branch(chat);
    const question = shown.findLastIndex((message) => message.role === "user" && !message.tool_call_id);
    const nRounds = shown.slice(question).filter((message) => message.tool_calls?.length).length;
    return tool && nRounds <= MOST_ROUNDS && (tool.trusted || storage.trusted().has(keyOf(tool)));
  }

  /** What the person says of a call: "once", "always" or "no". */
  async decide(message, call, verdict) {
    const { page } = this;
    if (page.running) return;
    if (verdict === "always") storage.keepTrusted(storage.trusted().add(keyOf(this.toolOf(call))));
    if (verdict === "no") {
      call.result = { text: REFUSED, failed: true };
      page.keep(page.chat);
    } else if (!(await this.make(message, call))) return;
    await this.goOn(message);
  }

  /** Make a call; whether the person let it end. */
  async make(message, call) {
    const { page } = this, { chat } = page, abort = new AbortController(), { name, arguments: args } = call.function;
    page.running = { chat, message, abort, began: performance.now(), doing: `calling ${name}` };
    page.show();
    const timer = setInterval(() => page.showRunning(), 500);
    try {
      call.result = await page.withKey(() => server.callTool(name, args || "{}", abort.signal));
    } catch (failure) {
      if (page.isLeaving) return false; // it is asked for again
      const isStopped = failure.name === "AbortError";
      call.result = { text: isStopped ? STOPPED : `The call failed: ${failure.message}`, failed: true };
    }
    clearInterval(timer);
    page.running = null;
    if (storage.chatOf(chat.id)) page.keep(chat); // it may have been deleted meanwhile
    page.show();
    return !abort.signal.aborted;
  }
}
