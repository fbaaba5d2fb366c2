// Text within a block of Markdown: emphasis, code, links, line breaks.
// In: text. Out: strings and nodes {tag, attributes, children}. Links lead to web and mail addresses alone.

const FARTHEST = 2000; // characters between the brackets of a link

/** A node of the tree that elements.js makes elements of. */
export const node = (tag, children = [], attributes = {}) => ({ tag, attributes, children });

const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPED = /[!-/:-@[-`{-~]/;
const PLAIN = /[^\\`*_~![<&\nh]+|h/y;
const SAFE = /^(?:https?:|mailto:)/i;
const ADDRESS = /https?:\/\/[^\s<>]+/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", mdash: "—", ndash: "–", rarr: "→", times: "×" };

/** The nodes and strings of a text without blocks. */
export function inline(text, isInLink = false) {
  const parts = [];
  const put = (part) => parts.push(part);
  const ticks = runsOf(text);
  let at = 0;
  while (at < text.length) {
    const found = special(text, at, ticks, isInLink);
    if (found) {
      put(found.part);
      at = found.end;
      continue;
    }
    PLAIN.lastIndex = at;
    const plain = PLAIN.exec(text)?.[0] ?? text[at];
    put(plain);
    at += plain.length;
  }
  return emphasized(parts);
}

/** What begins at a character that means something: {part, end}; null if it stands for itself. */
function special(text, at, ticks, isInLink) {
  switch (text[at]) {
    case "\\":
      if (text[at + 1] === "\n") return { part: node("br"), end: afterBreak(text, at + 2) };
      return ESCAPED.test(text[at + 1] ?? "") ? { part: text[at + 1], end: at + 2 } : null;
    case "\n": return { part: "\n", end: afterBreak(text, at + 1) };
    case "`": return codeSpan(text, at, ticks);
    case "*": case "_": case "~": return delimiter(text, at);
    case "[": return isInLink ? null : link(text, at, ticks);
    case "!": return text[at + 1] === "[" && !isInLink ? link(text, at + 1, ticks) : null;
    case "<": return tag(text, at, isInLink);
    case "&": return entity(text, at);
    case "h": return isInLink ? null : address(text, at);
    default: return null;
  }
}

function afterBreak(text, at) {
  while (text[at] === " ") at += 1;
  return at;
}

/** Where runs of backticks of each length begin. */
function runsOf(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, []);
    runs.get(run.length).push(index);
  }
  return runs;
}

function codeSpan(text, at, ticks) {
  const { length } = /^`+/.exec(text.slice(at, at + FARTHEST))[0];
  const closing = ticks.get(length)?.find((place) => place >= at + length);
  if (closing === undefined) return { part: "`".repeat(length), end: at + length };
  let body = text.slice(at + length, closing).replaceAll("\n", " ");
  if (/^ .* $/.test(body) && body.trim()) body = body.slice(1, -1);
  return { part: node("code", [body]), end: closing + length };
}

/** A link or the link to a picture. */
function link(text, at, ticks) {
  const closing = closingBracket(text, at, ticks);
  if (closing < 0 || text[closing + 1] !== "(") return null;
  const target = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/
    .exec(text.slice(closing + 1, closing + 1 + FARTHEST));
  if (!target) return null;
  const href = (target[1] ?? target[2]).replace(/\\([!-/:-@[-`{-~])/g, "$1");
  const inner = inline(text.slice(at + 1, closing), true);
  const part = SAFE.test(href) ? node("a", inner.length ? inner : [href], { href }) : node("span", inner);
  return { part, end: closing + 1 + target[0].length };
}

function closingBracket(text, at, ticks) {
  let depth = 0;
  for (let place = at; place < Math.min(text.length, at + FARTHEST); place += 1) {
    if (text[place] === "\\") place += 1;
    else if (text[place] === "`") place = codeSpan(text, place, ticks).end - 1;
    else if (text[place] === "[") depth += 1;
    else if (text[place] === "]" && --depth === 0) return place;
  }
  return -1;
}

/** An address between angle brackets, or a line break as HTML writes it. */
function tag(text, at, isInLink) {
  const rest = text.slice(at, at + FARTHEST), br = /^<br\s*\/?>/i.exec(rest);
  if (br) return { part: node("br"), end: at + br[0].length };
  const found = !isInLink && /^<((?:https?:|mailto:)[^\s<>]*)>/i.exec(rest);
  return found ? { part: node("a", [found[1]], { href: found[1] }), end: at + found[0].length } : null;
}

function address(text, at) {
  ADDRESS.lastIndex = at;
  let found = /[\p{L}\p{N}]/u.test(text[at - 1] ?? "") ? null : ADDRESS.exec(text)?.[0];
  if (!found) return null;
  for (;;) {
    const shorter = found.replace(/[.,:;!?"'*_~\]`]+$/, "").replace(/^([^(]*)\)$/, "$1");
    if (shorter === found) break;
    found = shorter;
  }
  return found.length > 8 ? { part: node("a", [found], { href: found }), end: at + found.length } : null;
}

function entity(text, at) {
  const found = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]+));/.exec(text.slice(at, at + 12));
  if (!found) return null;
  const number = found[1] ? Number(found[1]) : found[2] ? parseInt(found[2], 16) : 0;
  const part = found[3] ? ENTITIES[found[3]] : number && number <= 0x10ffff ? String.fromCodePoint(number) : "\ufffd";
  return part === undefined || !Object.hasOwn(ENTITIES, found[3] ?? "amp") ? null : { part, end: at + found[0].length };
}

function delimiter(text, at) {
  const mark = text[at];
  let end = at;
  while (text[end] === mark) end += 1;
  const length = end - at;
  if (mark === "~" && length !== 2) return { part: mark.repeat(length), end };
  const before = at ? [...text.slice(Math.max(0, at - 2), at)].at(-1) : " ", after = text[end] ?? " ";
  const [isSpaceBefore, isSpaceAfter] = [before, after].map((each) => /\s/.test(each));
  const [isMarkBefore, isMarkAfter] = [before, after].map((each) => PUNCTUATION.test(each));
  const isLeft = !isSpaceAfter && (!isMarkAfter || isSpaceBefore || isMarkBefore);
  const isRight = !isSpaceBefore && (!isMarkBefore || isSpaceAfter || isMarkAfter);
  const opens = isLeft && (mark !== "_" || !isRight || isMarkBefore);
  const closes = isRight && (mark !== "_" || !isLeft || isMarkAfter);
  return { part: { mark, length, whole: length, opens, closes }, end };
}

/** Pair the delimiters, as the CommonMark specification describes it. */
function emphasized(parts) {
  const bottoms = new Map();
  for (let closer = 0; closer < parts.length; closer += 1) {
    const end = parts[closer];
    if (!end.mark || !end.closes) continue;
    const key = `${end.mark}${end.opens}${end.whole % 3}`;
    const opener = openerOf(parts, closer, bottoms.get(key));
    if (opener < 0) { bottoms.set(key, parts[closer - 1] ?? null); continue; }
    const begin = parts[opener];
    const used = begin.mark === "~" || (begin.length > 1 && end.length > 1) ? 2 : 1;
    const inner = parts.slice(opener + 1, closer);
    const wrapped = node(begin.mark === "~" ? "s" : used === 2 ? "strong" : "em", strings(inner));
    begin.length -= used;
    end.length -= used;
    const kept = [...(begin.length ? [begin] : []), wrapped, ...(end.length ? [end] : [])];
    parts.splice(opener, closer - opener + 1, ...kept);
    closer = opener + (begin.length ? 1 : 0); // the next turn looks at the rest of the closing run
  }
  return strings(parts);
}

function openerOf(parts, closer, bottom) {
  const end = parts[closer];
  for (let place = closer - 1; place >= 0 && parts[place] !== bottom; place -= 1) {
    const begin = parts[place];
    if (begin.mark !== end.mark || !begin.opens) continue;
    const isOdd = (begin.closes || end.opens) && (begin.whole + end.whole) % 3 === 0;
    if (!isOdd || (begin.whole % 3 === 0 && end.whole % 3 === 0)) return place;
  }
  return -1;
}

/** Parts with what is left of delimiters as text, and neighbouring strings as one. */
function strings(parts) {
  const found = [];
  for (const part of parts) {
    const made = part.mark ? part.mark.repeat(part.length) : part;
    if (typeof made === "string" && typeof found.at(-1) === "string") found[found.length - 1] += made;
    else found.push(made);
  }
  return found.flatMap((part, place) => breaks(part, place === found.length - 1));
}

/** A string with its hard line breaks: two spaces before the end of a line. */
function breaks(part, isLast) {
  if (typeof part !== "string" || !/ \n/.test(part)) return [part];
  const pieces = part.split(/ {2,}\n/);
  return pieces.flatMap((piece, place) => {
    const text = piece.replace(/ \n/g, "\n");
    const hasBreak = place < pieces.length - 1;
    return [...(text || (!hasBreak && !isLast) ? [text] : []), ...(hasBreak ? [node("br")] : [])];
  });
}
