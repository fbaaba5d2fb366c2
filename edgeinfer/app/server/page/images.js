// Images that are sent with a message: what is read of a file, and how it goes to the model.
// In: files. Out: records {name, text: "", image}, as `edgeinfer chat` keeps them; the image is a data URL. Knows no page.

import { sizeText } from "./numbers.js";

const FILE_BYTES = 64_000_000;
const KEPT_BYTES = 300_000; // of a file that is sent as it is
const KEPT_KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // those that every server reads
const SIDE = 1536; // most pixels of a side of an image that is made smaller
const SMALLER_BYTES = 900_000; // most of an image that was made smaller, within what a file may have
const QUALITY = 0.87;
const DATA_URL = /^data:image\/[\w.+-]+;base64,[A-Za-z0-9+/]+={0,2}$/;

/** Whether a file is an image, as the browser says. */
export const isImage = (file) => file.type.startsWith("image/") && file.type !== "image/svg+xml";

/** Whether a text is an image that can be shown: nothing else is ever loaded. */
export const isImageUrl = (text) => typeof text === "string" && DATA_URL.test(text);

/** Read an image: {name, text, image}; a large one is made smaller. Throws an Error that says what would work. */
export async function readImage(file) {
  const { name } = file;
  if (file.size > FILE_BYTES) throw new Error(`${name} has ${sizeText(file.size)}, and an image may have ${sizeText(FILE_BYTES)}`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch (reason) {
    throw new Error(`${name} cannot be shown by this browser; PNG, JPEG and WebP can`, { cause: reason });
  }
  const isKept = file.size <= KEPT_BYTES && KEPT_KINDS.includes(file.type);
  const image = isKept ? await dataUrl(file) : smaller(bitmap);
  bitmap.close();
  return { name: name || "image", text: "", image };
}

/** An image drawn anew, as large as SIDE and SMALLER_BYTES allow. */
function smaller(bitmap) {
  for (let side = SIDE; ; side *= 0.75) {
    const image = drawn(bitmap, side);
    if (0.75 * image.length <= SMALLER_BYTES) return image;
  }
}

/** An image as a JPEG whose longer side has `side` pixels at most, over white where it is transparent. */
function drawn(bitmap, side) {
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height)), canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const drawing = canvas.getContext("2d");
  drawing.imageSmoothingQuality = "high";
  drawing.fillStyle = "white";
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", QUALITY);
}

function dataUrl(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}
