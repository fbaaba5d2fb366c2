// Text files that are sent with a message: what is read of a file, and how the model reads it and images beside it.
// In: files, pasted texts. Out: records {name, text}, as `edgeinfer chat` keeps them; parts of a message. Knows no page.

import { isImageUrl } from "./images.js";
import { sizeText } from "./numbers.js";

export const FILE_BYTES = 1_000_000;
export const MESSAGE_BYTES = 2_000_000; // of all files together: the browser keeps about 5 MB for all chats
export const LONG_PASTE_CHARACTERS = 4000;
const PROBED_BYTES = 8192;
const MARKS = [["utf-8", [0xef, 0xbb, 0xbf]], ["utf-16le", [0xff, 0xfe]], ["utf-16be", [0xfe, 0xff]]];
const CONTROLS = [9, 10, 11, 12, 13, 27]; // those that text may hold

/** Size of a text in bytes. */
export const bytesOf = (text) => new TextEncoder().encode(text).length;

/** Size of an attachment in bytes. */
export const sizeOf = ({ text, image }) => (image ? Math.floor(0.75 * (image.length - image.indexOf(",") - 1)) : bytesOf(text));

/** The text of a file: {name, text, notice}; the notice says that its encoding was guessed. Throws an Error that says what would work. */
export async function readFile(file) {
  const { name } = file;
  if (file.size > FILE_BYTES) {
    throw new Error(`${name} has ${sizeText(file.size)}, and a file may have ${sizeText(FILE_BYTES)}; attach a part of it`);
  }
  let bytes;
  try {
    bytes = new Uint8Array(await file.arrayBuffer());
  } catch (reason) {
    throw new Error(`${name} cannot be read; if it is a folder, choose the files in it`, { cause: reason });
  }
  const mark = MARKS.find(([, first]) => first.every((byte, place) => bytes[place] === byte));
  if (mark) return { name, text: new TextDecoder(mark[0]).decode(bytes), notice: "" };
  if (isBinary(bytes)) throw new Error(`${name} is not text; only text files can be attached`);
  try {
    return { name, text: new TextDecoder("utf-8", { fatal: true }).decode(bytes), notice: "" };
  } catch {
    return { name, text: new TextDecoder("latin1").decode(bytes), notice: `${name} is not UTF-8; it was read as Latin-1` };
  }
}

/** Whether bytes look binary: a zero byte, or many control characters, near the beginning. */
function isBinary(bytes) {
  const probe = bytes.subarray(0, PROBED_BYTES);
  const nOdd = probe.filter((byte) => byte < 32 && !CONTROLS.includes(byte)).length;
  return probe.includes(0) || nOdd > Math.floor(probe.length / 50);
}

/** Records of attachments. Throws an Error if these are none. */
export function attachmentsOf(found, where) {
  if (!(found ?? []).every?.((one) => typeof one?.name === "string" && typeof one.text === "string")) {
    throw new Error(`an attachment of ${where} has no name or no text`);
  }
  return (found ?? []).map(({ name, text, image, sound }) => {
    if (sound !== undefined) throw new Error(`${where} has a sound, ${name}; this page takes none: import the chat into edgeinfer chat`);
    if (image !== undefined && !isImageUrl(image)) throw new Error(`the image ${name} of ${where} is no data URL`);
    return { name, text, ...(image ? { image } : {}) };
  });
}

/** The content of a message: its images, then its text after its files as parts of their own, as `edgeinfer chat` sends them. */
export function contentOf({ text, attachments }) {
  if (!attachments?.length) return text;
  const images = attachments.filter(({ image }) => image).map(({ image }) => ({ type: "image_url", image_url: { url: image } }));
  const parts = [...attachments.filter(({ image }) => !image).map(documentOf), ...(text ? [text] : [])];
  return [...images, ...parts.map((part, place) => ({ type: "text", text: place < parts.length - 1 ? `${part}\n\n` : part }))];
}

/** An attachment as Markdown: an image, or a text in a fence that it cannot close. */
export const documentOf = ({ name, text, image }) => (image ? `![${name.replaceAll(/[[\]\\]/g, "")}](${image})` : `File: ${name}\n${fenced(text)}`);

/** A text in a code fence that it cannot close. */
export function fenced(text, language = "") {
  const longest = Math.max(2, ...[...text.matchAll(/`{3,}/g)].map((run) => run[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}
