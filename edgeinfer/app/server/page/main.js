// The page: chats at the side, the branch that is shown, and the answer that is being written.
// In: what the person does, what the server streams. Out: the page, and chats in this browser's storage.

import { newStream, sizeOf, stageOf, stream } from "./answers.js";
import { Calls } from "./calls.js";
import * as chats from "./chats.js";
import { Composer } from "./composer.js";
import { askKey, askSettings, showTools } from "./dialogs.js";
import { $, button, element, on } from "./elements.js";
import { loadingText, modelOptions, readsImages } from "./models.js";
import { counted } from "./numbers.js";
import * as server from "./server.js";
import { Side } from "./side.js";
import * as storage from "./storage.js";
import { Transcript } from "./transcript.js";

const SAVE_MS = 2000;
const SHOW_MS = 500;
const LOOK_MS = 1500; // between two looks at a model that is being loaded

class Page {
  constructor() {
    this.running = null; // {chat, message, abort, began, …}: the answer that is being written
    this.isLeaving = false;
    this.models = [];
    this.calls = new Calls(this);
    this.transcript = new Transcript($("transcript"), {
      turn: (message, step, label) => this.turn(message, step, label),
      edit: (message, view) => view.edit((text, attachments) => this.ask(text, attachments, message.parent)),
      regenerate: (message) => this.regenerate(message),
      goOn: (message) => this.answer(message.parent, message),
      answerAfter: (message) => this.answer(message.number),
      remove: (message) => this.remove(message),
      toolOf: (call) => this.calls.toolOf(call),
      decide: (message, call, verdict) => this.calls.decide(message, call, verdict),
      giveResults: (message) => { this.keep(this.chat); this.calls.goOn(message); },
    });
    this.side = new Side({ open: (chat, number) => this.openAt(chat, number), forget: (chat) => this.forget(chat) });
    this.composer = new Composer({
      send: (text, attachments) => this.ask(text, attachments), editLast: () => this.editLast(), isBusy: () => this.running !== null,
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

  /** Show a chat. An answer in the middle of which the page was closed is taken up, or has stopped. */
  open(chat, takesUp = true) {
    this.chat = this.running?.chat.id === chat.id ? this.running.chat : chat;
    storage.findImages(chat).then((found) => { if (found && this.chat === chat) this.show(); });
    const left = this.chat.messages.filter((message) => message.state === "writing" && message !== this.running?.message);
    const found = takesUp && !this.running && left.find(({ stream: told }) => told && (told.free || told.id === storage.ownStream()));
    for (const message of left) if (message !== found) message.state = "stopped";
    if (found) this.run(this.chat, found, found.parent, null);
    $("title").value = this.chat.title;
    $("export").open = false;
    this.side.open(false);
    this.showModels();
    this.showToolCount();
    this.show();
  }

  /** Show a chat at one of its messages; null: at its end. */
  openAt(chat, number) {
    this.open(chat.id === this.chat.id ? this.chat : chat);
    const message = number === null ? null : chats.messageOf(this.chat, number);
    if (!message) return;
    if (!this.running && !chats.branch(this.chat).includes(message)) chats.showBranchOf(this.chat, message);
    this.show();
    this.transcript.point(message);
  }

  /** Show everything that depends on the chat. */
  show() {
    this.transcript.show(this.chat, this.running);
    if (this.running?.chat === this.chat) this.showRunning();
    $("send").hidden = this.running !== null;
    $("stop").hidden = this.running === null;
    document.title = `${this.chat.title || "New chat"} – edgeinfer`;
    this.side.show(this.chat.id);
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

  keep(chat) { storage.keep(chat).catch((reason) => this.tell(reason.message)); }

  forget(chat) {
    if (!confirm(`Delete “${chat.title || "New chat"}” for good?`)) return;
    if (this.running?.chat.id === chat.id) this.stop();
    storage.forget(chat.id);
    if (chat.id === this.chat.id) this.open(storage.allChats()[0] ?? this.empty());
    else this.side.show();
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

  async export(told, suffix, type) {
    await storage.findImages(this.chat);
    const url = URL.createObjectURL(new Blob([told(this.chat)], { type }));
    element("a", { href: url, download: `${chats.fileStem(this.chat)}${suffix}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    $("export").open = false;
  }

  // ---- answers ----

  /** Ask a question after `parent`. */
  ask(text, attachments, parent = this.chat.leaf) {
    if (this.running) return;
    chats.add(this.chat, parent, "user", text, attachments.length ? { attachments } : {});
    $("title").value = this.chat.title;
    this.answer(this.chat.leaf);
  }

  /** Edit the last question; whether there is one. */
  editLast() {
    const last = chats.branch(this.chat).findLast((message) => message.role === "user" && !message.tool_call_id);
    if (last) this.transcript.views.get(last.number).edit((text, attachments) => this.ask(text, attachments, last.parent));
    return last !== undefined;
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
    const { chat } = this, leaf = message?.number ?? parent;
    let body;
    try {
      body = chats.requestBody(chat, leaf, this.calls.offered(chat));
    } catch (reason) {
      this.tell(reason.message);
      return;
    }
    message ??= chats.add(chat, parent, "assistant", "", { model: chat.settings.model || this.models[0]?.id || null });
    Object.assign(message, { state: "writing", figures: null, fault: undefined, stream: newStream(chats.newId(), message) });
    await this.run(chat, message, leaf, body);
  }

  /** Have a message written by the request `body`, which goes on after `leaf`; null: by the stream that it has begun. */
  async run(chat, message, leaf, body) {
    const nBefore = body ? sizeOf(message) : message.stream.text + message.stream.thoughts;
    const running = this.running = { chat, message, abort: new AbortController(), began: performance.now(), hasBegun: false, nBefore };
    delete message.stream.free;
    storage.keepOwnStream(message.stream.id);
    this.keep(chat);
    if (!chats.messageOf(chat, leaf)?.tool_call_id) this.tell(""); // what is told of a question stays for all its answers
    this.show();
    this.transcript.toEnd();
    $("status").textContent = "Answering";
    const timers = [[() => this.showRunning(), SHOW_MS], [() => this.keep(chat), SAVE_MS], [() => this.lookAtModel(running), LOOK_MS]];
    const ticking = timers.map(([work, every]) => setInterval(work, every));
    if (body) {
      await storage.findImages(chat);
      if (this.calls.isMissing(chat)) await this.findTools(running);
      body = chats.requestBody(chat, leaf, this.calls.offered(chat));
    }
    const isAsked = !running.abort.signal.aborted;
    await stream(running, body, (work) => this.withKey(work), () => this.drawSoon());
    ticking.forEach(clearInterval);
    this.running = null;
    if (this.isLeaving) return; // it is taken up
    storage.keepOwnStream(null);
    if (running.hasBegun || (isAsked && running.abort.signal.aborted)) server.forgetAnswer(message.stream.id);
    delete message.stream;
    if (storage.chatOf(chat.id)) this.keep(chat); // it may have been deleted meanwhile
    this.show();
    $("status").textContent = message.state === "failed" ? message.fault : `Answer: ${message.text || "tool calls"}`;
    if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) $("input").focus(); // what was pressed is gone
    this.refreshModels(); // one may have been loaded
    if (message.state === "whole" && message.tool_calls?.length && this.chat === chat) this.calls.goOn(message);
  }

  /** Find out how far the loading of the model is that an answer waits for. */
  async lookAtModel(running) {
    if (running.hasBegun) return;
    await this.refreshModels();
    running.loading = loadingText(this.models, running.chat.settings.model);
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
    this.transcript.update(running.message, stageOf(running));
  }

  stop() { this.running?.abort.abort(); }

  // ---- the server ----

  /** Do something that may need the key, and ask for it as often as it is wrong. */
  async withKey(work) {
    for (let why = "";;) {
      try {
        return await work();
      } catch (failure) {
        if (![401, 429].includes(failure.status)) throw failure; // no key, a wrong one, or too many wrong ones
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

  /** Ask again what the models are, when that may have changed; what fails is told by what is done next. */
  async refreshModels() {
    const found = await server.models().catch(() => null);
    if (found && !this.models.length) this.tell(""); // it did not answer before
    if (!found || JSON.stringify(found) === JSON.stringify(this.models)) return;
    this.models = found;
    this.showModels();
  }

  showModels() {
    $("model").replaceChildren(...modelOptions(this.models, this.chat.settings.model));
    this.composer.showSight(readsImages(this.models, this.chat.settings.model));
  }

  /** Find the tools of MCP servers, which may take a while to start; what is open shows them then. `running`: what waits. */
  async findTools(running = {}) {
    const waiting = setTimeout(() => this.showToolCount("tools are starting …"), SHOW_MS);
    running.doing = "starting tools";
    try {
      const news = await this.withKey(() => this.calls.find(running.abort?.signal));
      if (news) this.tell(news);
      showTools(this.calls.list(), true);
      if (!this.running && chats.branch(this.chat).at(-1)?.tool_calls?.length) this.show(); // calls that wait
    } catch (failure) {
      if (failure.name !== "AbortError") this.tell(failure.message, button("Try again", () => this.findTools()));
    }
    running.doing = undefined;
    clearTimeout(waiting);
    this.showToolCount();
  }

  showToolCount(text) {
    const n = this.calls.tools.size, isOff = this.chat.settings.mcp === false;
    $("tools").textContent = text ?? (isOff ? "tools are off" : counted(n, "tool"));
    $("tools").hidden = !text && !n;
  }

  // ---- the person ----

  listen() {
    on("new", "click", () => { this.side.endSearch(); this.open(this.empty()); $("input").focus(); });
    on("import", "click", () => $("file").click());
    on("file", "change", () => { if ($("file").files[0]) this.import($("file").files[0]); $("file").value = ""; });
    on("delete-all", "click", () => this.forgetAll());
    on("title", "change", () => this.change(() => { this.chat.title = $("title").value.trim(); }));
    on("model", "change", () => this.set(this.chat.system ?? "", { ...this.chat.settings, model: $("model").value }));
    on("export-markdown", "click", () => this.export(chats.toMarkdown, ".md", "text/markdown"));
    on("export-json", "click", () => this.export(chats.toJson, ".json", "application/json"));
    on("settings-open", "click", () => this.settings());
    on("tools", "click", () => this.settings());
    on("settings-cancel", "click", () => $("settings").close());
    on("forget-key", "click", () => { server.keepKey(""); $("settings").close(); });
    on("stop", "click", () => this.stop());
    document.addEventListener("click", (event) => { if (!$("export").contains(event.target)) $("export").open = false; });
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.refreshModels(); });
    addEventListener("storage", (event) => this.changedElsewhere(storage.chatAt(event.key)));
    addEventListener("pagehide", () => { this.isLeaving = true; if (this.running) this.leave(this.running); });
    addEventListener("pageshow", (event) => { this.isLeaving = false; if (event.persisted) this.open(storage.chatOf(this.chat.id) ?? this.chat); });
  }

  /** Keep what there is of an answer, so that this tab or another one takes it up. */
  leave({ chat, message }) {
    if (message.stream) message.stream.free = true; this.keep(chat);
  }

  key(event) {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      this.stop();
      this.side.open(false);
      $("export").open = false;
    } else if (event.altKey && event.code === "KeyT") {
      event.preventDefault();
      this.transcript.toggleThoughts();
    } else if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.code === "KeyK") {
      event.preventDefault();
      this.side.search();
    }
  }

  async settings() {
    $("forget-key").hidden = !server.hasKey();
    const found = await askSettings(this.chat.system ?? "", this.chat.settings, storage.theme(), this.calls.list());
    if (!found) return;
    storage.keepTrusted(found.trusted);
    this.set(found.system, found.settings);
    this.showToolCount();
    storage.keepTheme(found.theme);
    this.theme(found.theme);
  }

  set(system, settings) {
    Object.assign(this.chat, { system: system || null, settings, model: settings.model || null });
    storage.keepLatest(system, settings);
    if (this.chat.messages.length) this.keep(this.chat);
    this.showModels();
  }

  theme(name) {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
  }

  /** Another tab has changed a chat. */
  changedElsewhere(id) {
    const isOpen = id === this.chat.id && this.running?.chat.id !== id;
    const found = isOpen ? storage.chatOf(id) : null;
    if (found) this.open(found, false);
    else this.side.show();
  }

  /** Show a notice above the messages; "" takes it away. */
  tell(text, ...more) {
    $("notice").replaceChildren(text, ...more);
    $("notice").hidden = !text;
  }
}

await storage.begin();
new Page();
