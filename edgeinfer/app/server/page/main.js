// The page: chats at the side, the branch that is shown, and the answer that is being written.
// In: what the person does, what the server streams. Out: the page, and chats in this browser's storage.

import { Calls } from "./calls.js";
import * as chats from "./chats.js";
import { askKey, askSettings } from "./dialogs.js";
import { button, element } from "./elements.js";
import * as server from "./server.js";
import * as storage from "./storage.js";
import { Transcript } from "./transcript.js";

const SAVE_MS = 2000;
const $ = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.running = null; // {chat, message, abort, began}: the answer that is being written
    this.isLeaving = false;
    this.models = [];
    this.calls = new Calls(this);
    this.transcript = new Transcript($("transcript"), {
      turn: (message, step, label) => this.turn(message, step, label),
      edit: (message, view) => view.edit((text) => this.ask(text, message.parent)),
      regenerate: (message) => this.regenerate(message),
      goOn: (message) => this.answer(message.parent, message),
      answerAfter: (message) => this.answer(message.number),
      remove: (message) => this.remove(message),
      toolOf: (call) => this.calls.toolOf(call),
      decide: (message, call, verdict) => this.calls.decide(message, call, verdict),
      giveResults: (message) => { this.keep(this.chat); this.calls.goOn(message); },
    });
    this.listen();
    this.theme(storage.theme());
    this.open(storage.allChats()[0] ?? this.empty());
    this.findModels();
    $("input").focus();
  }

  empty() {
    const { system, settings } = storage.latest();
    return chats.newChat(system, settings);
  }

  // ---- chats ----

  /** Show a chat. */
  open(chat) {
    this.chat = this.running?.chat.id === chat.id ? this.running.chat : chat;
    for (const message of this.chat.messages) { // the page was closed in the middle of an answer
      if (message.state === "writing" && message !== this.running?.message) message.state = "stopped";
    }
    $("title").value = this.chat.title;
    $("export").open = false;
    this.showSide(false);
    this.showModels();
    this.show();
  }

  /** Show everything that depends on the chat. */
  show() {
    this.transcript.show(this.chat, this.running);
    if (this.running?.chat === this.chat) this.showRunning();
    $("send").hidden = this.running !== null;
    $("stop").hidden = this.running === null;
    document.title = `${this.chat.title || "New chat"} – edgeinfer`;
    this.showList();
  }

  showList() {
    const item = (chat) => element("li", { class: chat.id === this.chat.id ? "current" : null },
      button(chat.title || "New chat", () => this.open(chat), { class: "chat", "aria-current": chat.id === this.chat.id && "true" }),
      button("×", () => this.forget(chat), { class: "quiet", "aria-label": `Delete ${chat.title || "New chat"}` }));
    $("chats").replaceChildren(...storage.allChats().map(item));
  }

  /** Change the chat, keep it and show it. */
  change(work) {
    work();
    this.keep(this.chat);
    this.show();
  }

  turn(message, step, label) {
    let next;
    this.change(() => { next = chats.turn(this.chat, message, step); });
    this.transcript.focus(next, label);
  }

  keep(chat) {
    try {
      storage.keep(chat);
    } catch (reason) {
      this.tell(reason.message);
    }
  }

  forget(chat) {
    if (!confirm(`Delete “${chat.title || "New chat"}” for good?`)) return;
    if (this.running?.chat.id === chat.id) this.stop();
    storage.forget(chat.id);
    if (chat.id === this.chat.id) this.open(storage.allChats()[0] ?? this.empty());
    else this.showList();
  }

  forgetAll() {
    if (!confirm("Delete all chats, settings and the key that this page keeps in this browser?")) return;
    this.stop();
    storage.forgetAll();
    this.theme("");
    this.open(this.empty());
  }

  remove(message) {
    if (confirm("Delete this message and all that follow it?")) this.change(() => chats.remove(this.chat, message));
  }

  async import(file) {
    try {
      const chat = chats.fromJson(await file.text());
      this.keep(chat);
      this.open(chat);
    } catch (reason) {
      this.tell(`${file.name} cannot be imported: ${reason.message}`);
    }
  }

  export(text, suffix, type) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    element("a", { href: url, download: `${chats.fileStem(this.chat)}${suffix}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    $("export").open = false;
  }

  // ---- answers ----

  /** Ask a question after `parent`. */
  ask(text, parent = this.chat.leaf) {
    if (this.running) return;
    chats.add(this.chat, parent, "user", text);
    $("title").value = this.chat.title;
    this.answer(this.chat.leaf);
  }

  regenerate(message) {
    if (message.state === "failed" && !message.text) chats.remove(this.chat, message); // nothing to keep as a branch
    this.answer(message.parent);
  }

  /** Answer with the results of all calls of a message. */
  sendResults(message) {
    let leaf = message.number;
    for (const { id, function: { name }, result } of message.tool_calls) {
      leaf = chats.add(this.chat, leaf, "user", result.text, { tool_call_id: id, name, failed: result.failed }).number;
    }
    this.answer(leaf);
  }

  /** Write an answer after `parent`, or go on with `message`. */
  async answer(parent, message = null) {
    if (this.running) return;
    const { chat } = this, abort = new AbortController();
    let body;
    try {
      body = chats.requestBody(chat, message?.number ?? parent, this.calls.offered(chat));
    } catch (reason) {
      this.tell(reason.message);
      return;
    }
    message ??= chats.add(chat, parent, "assistant", "", { model: chat.settings.model || this.models[0]?.id || null });
    Object.assign(message, { state: "writing", figures: null, fault: undefined });
    this.running = { chat, message, abort, began: performance.now(), hasBegun: false };
    this.keep(chat);
    this.tell("");
    this.show();
    this.transcript.toEnd();
    $("status").textContent = "Answering";
    const timers = [setInterval(() => this.showRunning(), 500), setInterval(() => this.keep(chat), SAVE_MS)];
    await this.stream(body, message, abort.signal);
    timers.forEach(clearInterval);
    this.running = null;
    if (storage.chatOf(chat.id)) this.keep(chat); // it may have been deleted meanwhile
    this.show();
    $("status").textContent = message.state === "failed" ? message.fault : `Answer: ${message.text || "tool calls"}`;
    if (message.state === "whole" && message.tool_calls?.length && this.chat === chat) this.calls.goOn(message);
  }

  /** Fill a message from the server; its state says how that has ended. */
  async stream(body, message, signal) {
    let reason = null;
    const take = (chunk) => {
      const [choice] = chunk.choices;
      if (this.running) this.running.hasBegun = true;
      message.model = chunk.model ?? message.model;
      if (choice?.delta) extend(message, choice.delta);
      reason = choice?.finish_reason ?? reason;
      if (chunk.timings) message.figures = chats.figuresOf(chunk.timings, reason);
      this.drawSoon();
    };
    try {
      await this.withKey(() => server.answer(body, signal, take));
      message.state = reason === "length" ? "cut" : "whole";
    } catch (failure) {
      const isStopped = failure.name === "AbortError";
      message.state = isStopped ? "stopped" : "failed";
      if (!isStopped) message.fault = failure.message;
    }
  }

  /** Draw what has come, once a frame. */
  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.showRunning();
    });
  }

  showRunning() {
    const { running } = this;
    if (running?.chat !== this.chat) return;
    const { message } = running, seconds = Math.round((performance.now() - running.began) / 1000);
    const doing = running.doing ?? (message.text || message.thoughts ? "writing" : running.hasBegun ? "reading the prompt" : "waiting for the model");
    this.transcript.update(message, `${doing} … ${seconds} s`);
  }

  stop() {
    this.running?.abort.abort();
  }

  // ---- the server ----

  /** Do something that may need the key, and ask for it as often as it is wrong. */
  async withKey(work) {
    for (let why = "";;) {
      try {
        return await work();
      } catch (failure) {
        if (failure.status !== 401) throw failure;
        why = server.hasKey() ? failure.message : why;
        const key = await (this.asking ??= askKey(why).finally(() => { this.asking = null; }));
        if (key === null) throw failure;
        server.keepKey(key);
      }
    }
  }

  async findModels() {
    try {
      this.models = await this.withKey(server.models);
      this.tell("");
    } catch (failure) {
      this.tell(failure.message, button("Try again", () => this.findModels()));
    }
    this.showModels();
    $("input").focus();
    await this.findTools();
  }

  async findTools() {
    try {
      const failures = await this.calls.find();
      if (failures.length) this.tell(`Tools are missing: ${failures.join("; ")}`);
      if (!this.running && chats.branch(this.chat).at(-1)?.tool_calls?.length) this.show(); // calls that wait
    } catch (failure) {
      this.tell(failure.message, button("Try again", () => this.findTools()));
    }
  }

  showModels() {
    const { model } = this.chat.settings;
    const option = (id, text) => element("option", { value: id, selected: id === model }, text);
    const listed = this.models.map(({ id, size_bytes, status }) =>
      option(id, `${id}${size_bytes ? ` · ${(size_bytes / 1e9).toFixed(2)} GB` : ""}${status?.value === "loaded" ? " · loaded" : ""}`));
    const isMissing = model && this.models.length && !this.models.some(({ id }) => id === model);
    const standard = this.models.length ? `default: ${this.models[0].id}` : "default model";
    $("model").replaceChildren(option("", standard), ...listed, ...(isMissing ? [option(model, `${model} · not here`)] : []));
  }

  // ---- the person ----

  listen() {
    const on = (id, event, work) => $(id).addEventListener(event, work);
    on("new", "click", () => { this.open(this.empty()); $("input").focus(); });
    on("menu", "click", () => this.showSide(!document.body.classList.contains("side-open")));
    on("veil", "click", () => this.showSide(false));
    on("import", "click", () => $("file").click());
    on("file", "change", () => { if ($("file").files[0]) this.import($("file").files[0]); $("file").value = ""; });
    on("delete-all", "click", () => this.forgetAll());
    on("title", "change", () => this.change(() => { this.chat.title = $("title").value.trim(); }));
    on("model", "change", () => this.set(this.chat.system ?? "", { ...this.chat.settings, model: $("model").value }));
    on("export-markdown", "click", () => this.export(chats.toMarkdown(this.chat), ".md", "text/markdown"));
    on("export-json", "click", () => this.export(chats.toJson(this.chat), ".json", "application/json"));
    on("settings-open", "click", () => this.settings());
    on("settings-cancel", "click", () => $("settings").close());
    on("forget-key", "click", () => { server.keepKey(""); $("settings").close(); });
    on("stop", "click", () => this.stop());
    on("composer", "submit", (event) => { event.preventDefault(); this.send(); });
    on("input", "input", () => this.fit());
    on("input", "keydown", (event) => this.typed(event));
    document.addEventListener("click", (event) => { if (!$("export").contains(event.target)) $("export").open = false; });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
        this.stop();
        this.showSide(false);
        $("export").open = false;
      }
      if (event.altKey && event.code === "KeyT") { event.preventDefault(); this.transcript.toggleThoughts(); }
    });
    addEventListener("storage", (event) => this.changedElsewhere(storage.chatAt(event.key)));
    addEventListener("pagehide", () => { this.isLeaving = true; if (this.running) this.keep(this.running.chat); });
    addEventListener("pageshow", () => { this.isLeaving = false; });
  }

  typed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && !$("input").value && !this.running) {
      const last = chats.branch(this.chat).findLast((message) => message.role === "user" && !message.tool_call_id);
      if (!last) return;
      event.preventDefault();
      this.transcript.views.get(last.number).edit((text) => this.ask(text, last.parent));
    }
  }

  send() {
    const text = $("input").value;
    if (!text.trim() || this.running) return;
    $("input").value = "";
    this.fit();
    if (matchMedia("(pointer: fine)").matches) $("input").focus(); // elsewhere it would open a keyboard over the answer
    this.ask(text);
  }

  /** As high as the text, up to a limit in the style sheet. */
  fit() {
    $("input").style.height = "auto";
    $("input").style.height = `${$("input").scrollHeight + 2}px`;
  }

  async settings() {
    $("forget-key").hidden = !server.hasKey();
    const found = await askSettings(this.chat.system ?? "", this.chat.settings, storage.theme(), this.calls.list());
    if (!found) return;
    storage.keepTrusted(found.trusted);
    this.set(found.system, found.settings);
    storage.keepTheme(found.theme);
    this.theme(found.theme);
  }

  set(system, settings) {
    Object.assign(this.chat, { system: system || null, settings, model: settings.model || null });
    storage.keepLatest(system, settings);
    if (this.chat.messages.length) this.keep(this.chat);
  }

  theme(name) {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
  }

  /** The list of chats over the page, where the screen is narrow. */
  showSide(isShown) {
    document.body.classList.toggle("side-open", isShown);
    $("veil").hidden = !isShown;
    $("menu").setAttribute("aria-expanded", String(isShown));
  }

  /** Another tab has changed a chat. */
  changedElsewhere(id) {
    const isOpen = id === this.chat.id && this.running?.chat.id !== id;
    const found = isOpen ? storage.chatOf(id) : null;
    if (found) this.open(found);
    else this.showList();
  }

  /** Show a notice above the messages; "" takes it away. */
  tell(text, ...more) {
    $("notice").replaceChildren(text, ...more);
    $("notice").hidden = !text;
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

new Page();
