// Markdown as models write it (CommonMark without HTML and reference links; tables, strikethrough, task lists).
// In: text. Out: blocks as plain records {tag, attributes, children}, from which elements.js builds elements. What the
// text calls HTML stays text, and pictures become links: a page that shows an answer fetches nothing.

import { inline, node } from "./inline.js";

const DEEPEST = 16; // quotes and lists inside each other; deeper ones are text
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(.*)|)$/;
const INDENTED = /^ {4}/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => !line.trim();

/** The blocks of a text as [{source, node()}]; equal sources make equal nodes, so that callers can keep what they built. */
export function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n").map(withoutTabs);
  return scan(lines, 0).map((block) => ({ source: block.source, node: () => block.build() }));
}

/** The nodes of a text. */
export const nodesOf = (text) => blocksOf(text).map((block) => block.node());

function withoutTabs(line) {
  const indent = /^[ \t]*/.exec(line)[0];
  if (!indent.includes("\t")) return line;
  let width = 0;
  for (const each of indent) width += each === "\t" ? 4 - (width % 4) : 1;
  return " ".repeat(width) + line.slice(indent.length);
}

const READERS = [fence, heading, rule, quote, list, table, indented, paragraph];

/** Blocks as [{source, build, follows}]; follows: whether an empty line stands before it. */
function scan(lines, depth) {
  const blocks = [];
  let at = 0, follows = false;
  while (at < lines.length) {
    if (isBlank(lines[at])) { at += 1; follows = true; continue; }
    for (const read of READERS) {
      const found = read(lines, at, depth);
      if (!found) continue;
      const source = `${read.name}\n${lines.slice(at, found.end).join("\n")}`;
      blocks.push({ source, build: found.build, follows, isText: read === paragraph && !found.isHeading });
      at = found.end;
      break;
    }
    follows = false;
  }
  return blocks;
}

const built = (blocks) => blocks.map((block) => block.build());

function fence(lines, at) {
  const open = FENCE.exec(lines[at]) ?? /^( {0,3})(~{3,})(.*)$/.exec(lines[at]);
  if (!open) return null;
  const [, indent, mark, info] = open;
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const stripped = new RegExp(`^ {0,${indent.length}}`);
  const body = lines.slice(at + 1, end).map((line) => line.replace(stripped, ""));
  const language = info.trim().split(/\s+/)[0];
  return { end: end + 1, build: () => code(body.map((line) => `${line}\n`).join(""), language) };
}

const code = (text, language = "") =>
  node("pre", [node("code", [text], language ? { class: `language-${language}` } : {})]);

function heading(lines, at) {
  const found = HEADING.exec(lines[at]);
  return found && { end: at + 1, build: () => node(`h${found[1].length}`, inline(found[2] ?? "")) };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { end: at + 1, build: () => node("hr") } : null;
}

function quote(lines, at, depth) {
  if (depth >= DEEPEST || !QUOTE.test(lines[at])) return null;
  const inner = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    if (QUOTE.test(lines[end])) inner.push(lines[end].replace(QUOTE, ""));
    else if (isBlank(lines[end]) || !goesOn(inner) || interrupts(lines, end)) break;
    else inner.push(lines[end]);
  }
  return { end, build: () => node("blockquote", built(scan(inner, depth + 1))) };
}

/** Whether a line without a mark would go on with the paragraph that ends these lines. */
function goesOn(lines) {
  const last = lines.at(-1) ?? "";
  let isInFence = false;
  for (const line of lines) if (FENCE.test(line)) isInFence = !isInFence;
  return !isInFence && !isBlank(last) && !HEADING.test(last) && !RULE.test(last) && !FENCE.test(last);
}

/** Whether a line begins a block even where a paragraph could go on. */
function interrupts(lines, at) {
  const line = lines[at], item = ITEM.exec(line);
  const isList = item?.[3] && item[4].trim() && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1);
  return Boolean(isList) || [FENCE, HEADING, RULE, QUOTE].some((kind) => kind.test(line)) || isTable(lines, at);
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (depth >= DEEPEST || !first) return null;
  const kind = first[2].at(-1), isNumbered = /\d/.test(first[2]);
  const items = [];
  let end = at, isLoose = false;
  for (let found = first; found; ) {
    const item = listItem(lines, end, found);
    const blocks = scan(item.lines, depth + 1);
    isLoose ||= blocks.some((block, place) => place && block.follows);
    items.push(blocks);
    end = item.end;
    let next = end;
    while (next < lines.length && isBlank(lines[next])) next += 1;
    found = next < lines.length && !RULE.test(lines[next]) ? ITEM.exec(lines[next]) : null;
    if (found && (found[2].at(-1) !== kind || /\d/.test(found[2]) !== isNumbered)) found = null;
    if (found) { isLoose ||= next > end; end = next; }
  }
  const start = parseInt(first[2], 10);
  const attributes = isNumbered && start !== 1 ? { start: String(start) } : {};
  const build = () => node(isNumbered ? "ol" : "ul", items.map((blocks) => itemNode(blocks, isLoose)), attributes);
  return { end, build };
}

/** The lines of one item, without the indent, and where it ends. */
function listItem(lines, at, [, indent, mark, space = " ", text = ""]) {
  const isCode = space.length > 4;
  const width = indent.length + mark.length + (isCode || !text ? 1 : space.length);
  const inner = [isCode ? space.slice(1) + text : text];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (isBlank(line)) {
      if (inner.length === 1 && !inner[0]) break;
      inner.push("");
    } else if (line.length - line.trimStart().length >= width) inner.push(line.slice(width));
    else if (!isBlank(inner.at(-1)) && goesOn(inner) && !interrupts(lines, end) && !ITEM.test(line)) inner.push(line);
    else break;
  }
  while (inner.length > 1 && !inner.at(-1)) { inner.pop(); end -= 1; }
  return { lines: inner, end };
}

function itemNode(blocks, isLoose) {
  const children = blocks.flatMap((block) => {
    const made = block.build();
    return !isLoose && block.isText ? made.children : [made];
  });
  const into = isLoose && blocks[0]?.isText ? children[0].children : children;
  const task = typeof into[0] === "string" && /^\[([ xX])\] /.exec(into[0]);
  if (!task) return node("li", children);
  into[0] = into[0].slice(4);
  const box = { type: "checkbox", disabled: "", ...(task[1] === " " ? {} : { checked: "" }) };
  into.unshift(node("input", [], box), " ");
  return node("li", children, { class: "task" });
}

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function isTable(lines, at) {
  const marks = lines[at + 1];
  if (!lines[at].includes("|") || marks === undefined || !DELIMITERS.test(marks) || !/[|:]/.test(marks)) return false;
  return cells(lines[at]).length === cells(marks).length;
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  const sides = cells(lines[at + 1]).map((mark) => `${mark.startsWith(":") ? "l" : ""}${mark.endsWith(":") ? "r" : ""}`);
  const sideNames = { lr: "center", l: "left", r: "right" };
  const row = (tag, line) => {
    const texts = cells(line);
    return node("tr", sides.map((side, place) =>
      node(tag, inline(texts[place] ?? ""), side ? { class: `to-${sideNames[side]}` } : {})));
  };
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && !INDENTED.test(lines[end]) && !interrupts(lines, end)) end += 1;
  const build = () => {
    const body = lines.slice(at + 2, end).map((line) => row("td", line));
    return node("table", [node("thead", [row("th", lines[at])]), ...(body.length ? [node("tbody", body)] : [])]);
  };
  return { end, build };
}

function indented(lines, at) {
  if (!INDENTED.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && (INDENTED.test(lines[end]) || isBlank(lines[end]))) end += 1;
  while (isBlank(lines[end - 1])) end -= 1;
  const text = lines.slice(at, end).map((line) => `${line.slice(4)}\n`).join("");
  return { end, build: () => code(text) };
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end])) {
    const underline = UNDERLINE.exec(lines[end]);
    if (underline) {
      const text = joined(lines.slice(at, end));
      return { end: end + 1, isHeading: true, build: () => node(underline[1][0] === "=" ? "h1" : "h2", inline(text)) };
    }
    if (interrupts(lines, end)) break;
    end += 1;
  }
  return { end, build: () => node("p", inline(joined(lines.slice(at, end)))) };
}

const joined = (lines) => lines.map((line) => line.trimStart()).join("\n").trimEnd();
