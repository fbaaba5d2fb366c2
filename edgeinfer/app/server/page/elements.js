// Elements of the page, built one by one: no text of a model is ever read as HTML.
// In: tags, properties, children; trees of markdown.js. Out: elements.

import { blocksOf } from "./markdown.js";

/** The element of an id, and a listener to one of its events. */
export const $ = (id) => document.getElementById(id);
export const on = (id, event, work) => $(id).addEventListener(event, work);

/** An element. Properties that begin with "on" are listeners; null children are left out. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A button with a text. `label`: what screen readers say instead. */
export const button = (text, onclick, properties = {}) => element("button", { type: "button", onclick, ...properties }, text);

/** Put a text on the clipboard and say so on the button for a moment. */
export async function copy(text, from) {
  const before = from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    from.textContent = "Copied";
  } catch {
    from.textContent = copyOldWay(text) ? "Copied" : "Not copied";
  }
  setTimeout(() => { from.textContent = before; }, 1500);
}

/** Browsers give pages without HTTPS no clipboard, except on this computer itself. */
function copyOldWay(text) {
  const field = element("textarea", { class: "unseen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  return isDone;
}

/** Shows a growing text as Markdown; blocks that stay the same keep their elements, and with them a selection. */
export class MarkdownView {
  constructor() {
    this.element = element("div", { class: "markdown" });
    this.sources = [];
  }

  show(text) {
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.sources[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const block of blocks.slice(same)) this.element.append(built(block.node()));
    this.sources = blocks.map((block) => block.source);
  }
}

function built(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const { tag, attributes, children } = node;
  const more = tag === "a" ? { target: "_blank", rel: "noopener noreferrer" } : {};
  const made = element(tag, { ...attributes, ...more }, ...children.map(built));
  if (tag === "pre") return codeBlock(made);
  return tag === "table" ? element("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" }, made) : made;
}

function codeBlock(pre) {
  const language = /^language-(.*)$/.exec(pre.firstChild.className)?.[1] ?? "";
  const copying = button("Copy", () => copy(pre.textContent, copying), { class: "quiet", "aria-label": "Copy code" });
  pre.tabIndex = 0; // long lines scroll, by the keyboard too
  return element("div", { class: "code" }, element("div", { class: "code-head" }, element("span", {}, language), copying), pre);
}
