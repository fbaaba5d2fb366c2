// Chats and the latest settings in this browser's localStorage, one entry a chat; nothing of them is kept on the server.
// In: records. Out: records. What another tab has changed comes as the browser's "storage" event.

const PREFIX = "edgeinfer.chat.";
const LATEST = "edgeinfer.latest";
const TRUSTED = "edgeinfer.trusted";
const THEME = "edgeinfer.theme";
const STREAM = "edgeinfer.stream";

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // damaged: as if it were not there
  }
}

/** All chats, the one that changed last first. */
export function allChats() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  const chats = keys.map((key) => parsed(localStorage.getItem(key))).filter((chat) => Array.isArray(chat?.messages));
  return chats.sort((one, other) => other.changed_s - one.changed_s);
}

/** The chat of an id; null if there is none. */
export const chatOf = (id) => parsed(localStorage.getItem(PREFIX + id));

/** Keep a chat. Throws an Error that says what would work if the browser has no room. */
export function keep(chat) {
  chat.changed_s = Date.now() / 1000;
  try {
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
  } catch (reason) {
    throw new Error("the browser has no room for this chat: export it, or delete other chats", { cause: reason });
  }
}

/** Delete a chat for good. */
export const forget = (id) => localStorage.removeItem(PREFIX + id);

/** Delete everything that the page has kept in this browser, the key included. */
export function forgetAll() {
  for (const key of Object.keys(localStorage)) if (key.startsWith("edgeinfer.")) localStorage.removeItem(key);
  sessionStorage.clear();
}

/** The id of the chat that a storage event is about; null if it is about none. */
export const chatAt = (key) => (key?.startsWith(PREFIX) ? key.slice(PREFIX.length) : null);

/** System prompt and settings that new chats begin with. */
export const latest = () => parsed(localStorage.getItem(LATEST)) ?? { system: "", settings: undefined };
export const keepLatest = (system, settings) => localStorage.setItem(LATEST, JSON.stringify({ system, settings }));

/** The tools, as server/tool, that are called without a question until this tab is closed. */
export const trusted = () => new Set(parsed(sessionStorage.getItem(TRUSTED)) ?? []);
export const keepTrusted = (tools) => sessionStorage.setItem(TRUSTED, JSON.stringify([...tools]));

/** The id of the stream that this tab has begun, which it takes up when it is loaded again. */
export const ownStream = () => sessionStorage.getItem(STREAM);
export const keepOwnStream = (id) => (id ? sessionStorage.setItem(STREAM, id) : sessionStorage.removeItem(STREAM));

/** "light", "dark", or "" for the system's. */
export const theme = () => localStorage.getItem(THEME) ?? "";
export const keepTheme = (name) => (name ? localStorage.setItem(THEME, name) : localStorage.removeItem(THEME));
