// The messages of a chat on the screen, each with its branches, thoughts, calls, statistics and actions.
// In: records of chats.js, a record of actions to call. Out: elements.

import { sizeOf } from "./attachments.js";
import { branch, siblings } from "./chats.js";
import { Chips } from "./chips.js";
import { $, MarkdownView, button, copy, element, on } from "./elements.js";
import { isImageUrl } from "./images.js";
import { counted, rate, secondsText, sizeText, whole } from "./numbers.js";

const ENDINGS = { stopped: "stopped", cut: "cut at the most tokens of an answer" };
const RESULT_CHARACTERS = 80; // of a folded result
const FEWEST_READ = 32; // new tokens of a prompt; of fewer the rate says nothing
const words = (text) => text.split(/\s+/).filter(Boolean).length;

/** Statistics of an answer as one line. */
export function figuresLine({ decode_tok_s, n_generated, n_prompt, n_cached, ttft_s, prefill_tok_s }) {
  const parts = [
    Number.isFinite(decode_tok_s) && decode_tok_s ? `${rate(decode_tok_s)} tok/s` : null,
    counted(n_generated, "token"),
    `prompt ${whole(n_prompt)}${n_cached ? ` (${whole(n_cached)} cached)` : ""}`,
    Number.isFinite(ttft_s) ? `first token after ${secondsText(ttft_s)}` : null,
    Number.isFinite(prefill_tok_s) && n_prompt - n_cached >= FEWEST_READ ? `prefill ${rate(prefill_tok_s)} tok/s` : null,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Shows the displayed branch of a chat. `actions`: what the buttons of messages call, with the message first. */
export class Transcript {
  constructor(place, actions) {
    this.place = place;
    this.actions = actions;
    this.views = new Map();
    place.addEventListener("scroll", () => this.showWay());
    place.addEventListener("toggle", () => this.showWay(), true); // something was unfolded
    new ResizeObserver(() => this.showWay()).observe(place);
    on("to-end", "click", () => this.toEnd());
  }

  /** Show a chat: from its end if another one was shown or its end was seen; unfolded thoughts stay so. */
  show(chat, running) {
    const isSame = chat === this.chat, top = isSame && !this.isAtEnd() ? this.place.scrollTop : null;
    const unfolded = [...this.views].filter(([, view]) => isSame && view.folded.open).map(([number]) => number);
    this.chat = chat;
    this.views.clear();
    const messages = branch(chat);
    this.place.replaceChildren(...messages.map((message, index) => {
      const isLast = index === messages.length - 1;
      const view = new MessageView(chat, message, { isLast, isBusy: running !== null, actions: this.actions });
      this.views.set(message.number, view);
      return view.element;
    }));
    if (!messages.length) {
      this.place.append(element("p", { class: "empty" }, "What do you want to ask?",
        element("small", {}, "Text files, and images where the model sees, can be dropped or pasted here, or attached with the clip below.")));
    }
    for (const number of unfolded) if (this.views.has(number)) this.views.get(number).folded.open = true;
    this.place.scrollTop = top ?? this.place.scrollHeight;
    this.showWay();
  }

  /** Bring a message into view and the keyboard to a button of its branches. */
  focus(message, label) {
    const { element: shown } = this.views.get(message.number);
    shown.scrollIntoView({ block: "nearest" });
    const buttons = [...shown.querySelectorAll(".branches button:enabled")];
    (buttons.find((one) => one.getAttribute("aria-label") === label) ?? buttons[0])?.focus();
  }

  /** Bring a message that was searched for into view. */
  point(message) {
    const shown = this.views.get(message.number)?.element;
    shown?.scrollIntoView({ block: "center" });
    shown?.classList.add("found");
  }

  /** Show what has come to a message, and how far it is; stays at the end if the reader is there. */
  update(message, stage) {
    const wasAtEnd = this.isAtEnd();
    this.views.get(message.number)?.update(message, stage);
    if (wasAtEnd) this.toEnd();
    else this.showWay();
  }

  /** Offer the way to the end to who is far from it. */
  showWay() {
    $("to-end").hidden = this.isAtEnd();
  }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.place;
    return scrollHeight - scrollTop - clientHeight < 60;
  }

  toEnd() {
    this.place.scrollTop = this.place.scrollHeight;
  }

  /** Show or hide all thoughts. */
  toggleThoughts() {
    const all = [...this.place.querySelectorAll("details.thoughts")];
    const isOpen = all.some((one) => one.open);
    for (const one of all) one.open = !isOpen;
  }
}

class MessageView {
  constructor(chat, message, { isLast, isBusy, actions }) {
    this.chat = chat;
    this.message = message;
    const kind = message.tool_call_id ? "tool" : message.role;
    const author = { user: "You", summary: "Summary", tool: `Result of ${message.name}` }[kind] ?? message.model ?? "Answer";
    this.summary = element("summary");
    this.thoughts = element("div", { class: "plain" });
    this.folded = element("details", { class: "thoughts", hidden: true }, this.summary, this.thoughts);
    this.markdown = kind === "assistant" ? new MarkdownView() : null;
    this.text = this.markdown?.element ?? element("div", { class: "plain" });
    this.body = kind === "tool" ? element("details", { class: "result" }, element("summary"), this.text) : this.text;
    this.calls = element("div", { class: "calls" });
    this.bar = element("progress", { max: "1", "aria-label": "Share of the prompt that was read", hidden: true });
    this.note = element("p", { class: "note", hidden: true });
    this.foot = element("footer");
    this.element = element("article", { class: `message ${kind}`, "aria-label": author },
      element("header", {}, element("h2", {}, author), this.branches(isBusy, actions)),
      this.markdown && this.folded, attachmentList(message), this.body, this.calls, this.bar, this.note, this.foot);
    this.update(message);
    if (message.state !== "writing") this.finish(isLast, isBusy, actions);
  }

  update(message, { note, share = null } = { note: ENDINGS[message.state] ?? message.fault }) {
    const isThinking = message.state === "writing" && !message.text;
    this.folded.hidden = !message.thoughts;
    if (message.thoughts) {
      this.summary.textContent = `${isThinking ? "thinking" : "thought"}, ${counted(words(message.thoughts), "word")}`;
      this.thoughts.textContent = message.thoughts;
    }
    if (this.markdown) this.markdown.show(message.text);
    else this.text.textContent = message.text;
    if (message.tool_call_id) this.body.firstChild.textContent = `${message.failed ? "failed: " : ""}${cut(message.text)}`;
    this.calls.replaceChildren(...(message.tool_calls ?? []).map(callBox));
    this.bar.hidden = share === null;
    this.bar.value = share ?? 0;
    this.note.textContent = note ?? "";
    this.note.hidden = !note;
    this.note.classList.toggle("fault", message.state === "failed");
  }

  /** ‹ 2/3 › where the message has siblings. */
  branches(isBusy, actions) {
    const all = siblings(this.chat, this.message), place = all.indexOf(this.message);
    if (all.length < 2) return null;
    const step = (text, label, by) => button(text, () => actions.turn(this.message, by, label), {
      class: "quiet", "aria-label": label, disabled: isBusy || !all[place + by],
    });
    return element("span", { class: "branches", role: "group", "aria-label": "Branches" },
      step("‹", "Previous branch", -1), element("span", {}, `${place + 1}/${all.length}`), step("›", "Next branch", 1));
  }

  finish(isLast, isBusy, actions) {
    const { message } = this, act = (text, name) =>
      button(text, () => actions[name](message, this), { class: "quiet", disabled: isBusy });
    const isAnswer = message.role === "assistant", isQuestion = message.role === "user" && !message.tool_call_id;
    const copying = button("Copy", () => copy(message.text, copying), { class: "quiet" });
    const goesOn = isLast && isAnswer && message.text && !message.tool_calls?.length && message.state !== "whole";
    this.foot.append(...[
      message.figures && element("span", { class: "figures" }, figuresLine(message.figures)),
      element("span", { class: "actions" },
        message.text ? copying : null,
        isQuestion ? act("Edit", "edit") : null,
        isAnswer ? act("Regenerate", "regenerate") : null,
        goesOn ? act("Continue", "goOn") : null,
        isLast && !isAnswer ? act("Answer", "answerAfter") : null,
        act("Delete", "remove")),
    ].filter(Boolean));
    if (isLast && message.tool_calls?.length && !isBusy) this.ask(actions);
  }

  /** Ask for what the calls need: permission where a server makes them, their results where the person writes them. */
  ask(actions) {
    const { message } = this, waiting = message.tool_calls.filter((call) => !call.result);
    message.tool_calls.forEach((call, place) => {
      if (message.state === "whole" && !call.result && actions.toolOf(call)) this.calls.children[place].append(question(message, call, actions));
    });
    const own = waiting.filter((call) => !actions.toolOf(call));
    if (own.length) this.calls.append(resultsForm(message, own, actions));
    if (!waiting.length) this.calls.append(element("div", { class: "buttons" }, button("Go on", () => actions.giveResults(message), { class: "main" })));
  }

  /** Put an editor in the place of the text; `send` gets the new text, and the attachments that are left. */
  edit(send) {
    if (this.foot.hidden) return; // it is there
    const field = element("textarea", { "aria-label": "Edited question", rows: "3" });
    field.value = this.message.text;
    const place = element("ul", { class: "chips", "aria-label": "Attachments" }), files = this.element.querySelector(".attachments");
    const chips = new Chips(place, () => {}, this.message.attachments);
    const close = () => {
      editor.replaceWith(this.text);
      this.foot.hidden = false;
      files?.removeAttribute("hidden");
    };
    const submit = () => { if (field.value.trim() || chips.items.length) send(field.value, chips.items); };
    const editor = element("form", { class: "editor", onsubmit: (event) => { event.preventDefault(); submit(); } },
      place, field, element("p", { class: "about" }, "The old question stays as a branch."),
      element("div", { class: "buttons" }, button("Cancel", close), element("button", { class: "main" }, "Send")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
    });
    this.text.replaceWith(editor);
    this.foot.hidden = true;
    files?.setAttribute("hidden", "");
    field.focus();
  }
}

/** The attachments of a message: images, and folded texts; null if it has none. */
function attachmentList({ attachments }) {
  if (!attachments?.length) return null;
  return element("div", { class: "attachments" }, ...attachments.map((item) => {
    const { name, text, image } = item;
    if (isImageUrl(image)) return element("img", { class: "attached-image", src: image, alt: name, title: `${name}, ${sizeText(sizeOf(item))}` });
    const shown = element("pre", { tabindex: "0", "aria-label": name });
    const unfold = () => { shown.textContent ||= text; }; // a long text costs nothing until it is looked at
    return element("details", { class: "attachment", ontoggle: unfold },
      element("summary", {}, element("span", { class: "chip-name", title: name }, name), element("span", { class: "chip-size" }, sizeText(sizeOf(item)))), shown);
  }));
}

function callBox(call) {
  return element("div", { class: "call" },
    element("div", { class: "call-head" }, "calls ", element("code", {}, call.function.name)),
    element("pre", { tabindex: "0" }, readable(call.function.arguments)),
    call.result ? element("p", { class: "call-end" }, `${call.result.failed ? "failed" : "gave"}: ${cut(call.result.text)}`) : null);
}

const cut = (text) => (text.length > RESULT_CHARACTERS ? `${text.slice(0, RESULT_CHARACTERS)}…` : text).replaceAll(/\s+/g, " ");

/** Whether a call may be made. */
function question(message, call, actions) {
  const { server, tool } = actions.toolOf(call);
  const say = (text, verdict, properties) => button(text, () => actions.decide(message, call, verdict), properties);
  return element("div", { class: "question", role: "group", "aria-label": `May ${tool} be called?` },
    element("span", {}, "May ", element("code", {}, tool), " of ", element("strong", {}, server), " be called with this?"),
    element("div", { class: "buttons" }, say("Refuse", "no"), say("Always", "always", { title: `Call ${tool} without a question until this tab is closed` }),
      say("Allow", "once", { class: "main" })));
}

function readable(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** Fields for what these calls return, which the person writes. */
function resultsForm(message, calls, actions) {
  const fields = calls.map((call) =>
    element("textarea", { rows: "2", class: "mono", "aria-label": `Result of ${call.function.name}`, placeholder: `What ${call.function.name} returns` }));
  const submit = (event) => {
    event.preventDefault();
    calls.forEach((call, place) => { call.result = { text: fields[place].value, failed: false }; });
    actions.giveResults(message);
  };
  return element("form", { class: "results", onsubmit: submit }, ...fields,
    element("div", { class: "buttons" }, element("button", { class: "main" }, "Send results")));
}
