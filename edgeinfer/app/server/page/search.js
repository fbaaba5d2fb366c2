// Search over all chats: which messages hold all words of a query, whatever their case and accents.
// In: records of chats.js, a query. Out: records {chat, message, parts}; parts: the words around, [text, whether it matches].

const BEFORE = 30, AFTER = 110; // characters around the first match
const folded = (text) => text.normalize("NFKD").replaceAll(/\p{M}/gu, "").toLowerCase().replaceAll("ς", "σ");

/** What a query finds, in the order of the chats and of their messages; `message` is null where only the title matches. */
export function search(chats, query) {
  const words = folded(query).split(/\s+/).filter(Boolean);
  if (!words.length) return [];
  return chats.flatMap((chat) => {
    const messages = chat.messages.map((message) => [message, readable(message)]).filter(([, text]) => holds(text, words));
    if (messages.length) return messages.map(([message, text]) => ({ chat, message, parts: snippet(text, words) }));
    return holds(chat.title, words) ? [{ chat, message: null, parts: [] }] : [];
  });
}

const readable = ({ text, attachments = [] }) => [...attachments.map(({ name }) => name), text].join(" ");

function holds(text, words) {
  const plain = folded(text);
  return words.every((word) => plain.includes(word));
}

/** The words around the first match. */
function snippet(text, words) {
  const { plain, from } = mapped(text);
  const spans = words.flatMap((word) => [...occurrences(plain, word)].map((at) => [from(at), from(at + word.length)]));
  spans.sort(([one], [other]) => one - other);
  const begin = Math.max(0, spans[0][0] - BEFORE), end = Math.min(text.length, spans[0][0] + AFTER);
  const parts = [[begin ? "…" : "", false]];
  let at = begin;
  for (const [first, last] of spans) {
    if (first < at || last > end) continue;
    parts.push([text.slice(at, first), false], [text.slice(first, last), true]);
    at = last;
  }
  parts.push([text.slice(at, end) + (end < text.length ? "…" : ""), false]);
  return parts.filter(([part]) => part);
}

function* occurrences(text, word) {
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) yield at;
}

/** A text as it is compared, and where its characters stand in the text itself. */
function mapped(text) {
  const plain = folded(text);
  if (plain.length === text.length) return { plain, from: (at) => at };
  const places = [];
  let at = 0, made = "";
  for (const sign of text) {
    const one = sign < "\x80" ? sign.toLowerCase() : folded(sign);
    made += one;
    for (let n = 0; n < one.length; n += 1) places.push(at);
    at += sign.length;
  }
  return { plain: made, from: (place) => places[place] ?? text.length };
}
