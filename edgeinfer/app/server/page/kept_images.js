// Images of chats in this browser's IndexedDB, which has room for many; localStorage has about 5 MB for all chats.
// In: chats whose attachments have images as data URLs. Out: their records, which name images that are kept ("kept:ID").

import { isImageUrl } from "./images.js";

const NAME = "edgeinfer", STORE = "images";
const KEPT = /^kept:[0-9a-f]{24}$/, ALL_KEPT = /"kept:([0-9a-f]{24})"/g;
const LOST = "[This image is no longer kept in the browser.]";
const NO_ROOM = "the browser has no room for the images of this chat: export it, or delete other chats";

let database = null; // null: this browser has none, and images stay in their chats
let ids = new WeakMap(); // of attachments that are kept

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const store = (mode) => database.transaction(STORE, mode).objectStore(STORE);

/** Open what is kept. Call it before anything else. */
export async function begin() {
  try {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    database = await done(opening);
  } catch {
    database = null;
  }
}

/** A chat as JSON that names its images, and the images that are to be kept for it: [id, attachment] each. */
export function recordOf(chat, newId) {
  const added = [];
  function named(key, value) {
    if (key !== "image" || !database || !isImageUrl(value)) return value;
    if (!ids.has(this)) {
      ids.set(this, newId());
      added.push([ids.get(this), this]);
    }
    return `kept:${ids.get(this)}`;
  }
  return [JSON.stringify(chat, named), added];
}

/** Keep images, or forget their ids. Throws an Error that says what would work if the browser has no room. */
export async function put(added) {
  if (!added.length) return;
  try {
    await new Promise((resolve, reject) => {
      const images = store("readwrite");
      Object.assign(images.transaction, { oncomplete: resolve, onabort: reject });
      for (const [id, { image }] of added) images.put(image, id);
    });
  } catch (reason) {
    unname(added);
    throw new Error(NO_ROOM, { cause: reason });
  }
}

/** Forget the ids of images that were not kept. */
export const unname = (added) => added.forEach(([, attachment]) => ids.delete(attachment));

/** Forget all ids: another tab has deleted chats, perhaps with images that chats of this one have too. */
export function unnameAll() {
  ids = new WeakMap();
}

/** Put the images of a chat in place of their names; a text says so where one is gone. Whether there was a name. */
export async function find(chat) {
  const named = chat.messages.flatMap(({ attachments }) => attachments ?? []).filter(({ image }) => KEPT.test(image));
  await Promise.all(named.map(async (attachment) => {
    const id = attachment.image.slice("kept:".length);
    const image = database && (await done(store("readonly").get(id)).catch(() => null));
    if (isImageUrl(image)) {
      attachment.image = image;
      ids.set(attachment, id);
    } else {
      delete attachment.image;
      attachment.text = LOST;
    }
  }));
  return named.length > 0;
}

/** Delete images that none of the chats names; `records`: reads these as JSON. */
export async function sweep(records) {
  if (!database) return;
  try {
    const kept = await done(store("readonly").getAllKeys()); // before the chats, which name their images first
    const named = new Set(records().flatMap((text) => [...text.matchAll(ALL_KEPT)].map(([, id]) => id)));
    const images = store("readwrite");
    for (const id of kept) if (!named.has(id)) images.delete(id);
  } catch {
    // they are deleted another time
  }
}
