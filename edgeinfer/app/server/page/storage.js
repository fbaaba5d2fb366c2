// Chats and the latest settings in this browser's localStorage, one entry a chat; their images are in its IndexedDB.
// Nothing of them is kept on the server.
// In: records. Out: records. What another tab has changed comes as the browser's "storage" event.

import { newId } from "./chats.js";
import * as images from "./kept_images.js";

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

/** Open the storage. Call it before anything else. */
export async function begin() {
  await images.begin();
  images.sweep(records);
  addEventListener("storage", ({ newValue }) => { if (newValue === null) images.unnameAll(); });
}

const records = () => Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).map((key) => localStorage.getItem(key));

/** All chats, the one that changed last first. */
export function allChats() {
  const chats = records().map(parsed).filter((chat) => Array.isArray(chat?.messages));
  return chats.sort((one, other) => other.changed_s - one.changed_s);
}

/** The chat of an id; null if there is none. */
export const chatOf = (id) => parsed(localStorage.getItem(PREFIX + id));

/** Keep a chat, at once but for new images. Throws an Error that says what would work if the browser has no room. */
export async function keep(chat) {
  chat.changed_s = Date.now() / 1000;
  const [text, added] = images.recordOf(chat, newId);
  try {
    localStorage.setItem(PREFIX + chat.id, text);
  } catch (reason) {
    images.unname(added);
    throw new Error("the browser has no room for this chat: export it, or delete other chats", { cause: reason });
  }
  await images.put(added);
}

/** Find the images of a chat that was not opened yet; whether there were any. */
export const findImages = (chat) => images.find(chat);

/** Delete a chat for good. */
export function forget(id) {
  localStorage.removeItem(PREFIX + id);
  images.sweep(records);
}

/** Delete everything that the page has kept in this browser, the key included. */
export function forgetAll() {
  for (const key of Object.keys(localStorage)) if (key.startsWith("edgeinfer.")) localStorage.removeItem(key);
  sessionStorage.clear();
  images.sweep(records);
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
