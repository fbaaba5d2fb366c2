// Attachments of a message that is being written, as chips that can be taken away.
// In: files, pasted texts. Out: chips on the page; records {name, text}, of images {name, text: "", image}.

import { FILE_BYTES, MESSAGE_BYTES, readFile, sizeOf } from "./attachments.js";
import { button, element } from "./elements.js";
import { isImage, readImage } from "./images.js";
import { sizeText } from "./numbers.js";

export class Chips {
  /** `tell`: shows why something was not attached (and true), or what else is to be known of it. */
  constructor(place, tell, items = []) {
    this.place = place;
    this.tell = tell;
    this.items = [...items];
    this.sees = false; // whether the model reads images
    this.ready = Promise.resolve(); // once all files are read
    this.show();
  }

  /** Attach files; those that cannot be are told of by their names. */
  addFiles(files) {
    const all = [...files];
    this.ready = this.ready.then(() => this.read(all));
    return this.ready;
  }

  async read(files) {
    const notices = [], failures = [];
    for (const file of files) {
      try {
        if (isImage(file) && !this.sees) {
          throw new Error(`${file.name} is an image, and this model reads text alone; choose a model that sees`);
        }
        const { notice, ...read } = await (isImage(file) ? readImage(file) : readFile(file));
        this.add(read);
        if (notice) notices.push(notice);
      } catch (reason) {
        failures.push(reason.message);
      }
    }
    this.tell([...failures, ...notices].join("\n"), failures.length > 0);
  }

  /** Attach a pasted text under a name that is still free. Throws an Error if it is too long. */
  addPasted(text) {
    let number = 1;
    while (this.items.some(({ name }) => name === `pasted text ${number}`)) number += 1;
    return this.add({ name: `pasted text ${number}`, text });
  }

  /** Attach a text or an image; the same one under the same name only once. Throws an Error that says what would work. */
  add(read) {
    const { name, text, image } = read;
    const same = this.items.find((item) => item.name === name && item.text === text && item.image === image);
    if (same) return same;
    const size = sizeOf(read), total = size + this.items.reduce((sum, item) => sum + sizeOf(item), 0);
    if (size > FILE_BYTES) throw new Error(`${name} has ${sizeText(size)}, and a file may have ${sizeText(FILE_BYTES)}; attach a part of it`);
    if (total > MESSAGE_BYTES) {
      throw new Error(`${name} was left out: the files of a message may have ${sizeText(MESSAGE_BYTES)} together; send it with the next one`);
    }
    const item = { ...read, name: this.freeName(name) };
    this.items.push(item);
    this.show();
    return item;
  }

  /** Two files of one name come from two folders: the second one gets a number. */
  freeName(name) {
    let found = name;
    for (let number = 2; this.items.some((item) => item.name === found); number += 1) found = `${name} (${number})`;
    return found;
  }

  remove(item) {
    this.items = this.items.filter((one) => one !== item);
    this.tell("");
    this.show();
  }

  /** The attachments, which are then no longer here. */
  take() {
    const { items } = this;
    this.items = [];
    this.tell("");
    this.show();
    return items;
  }

  show() {
    this.place.hidden = !this.items.length;
    this.place.replaceChildren(...this.items.map((item) => element("li", { class: "chip" },
      item.image ? element("img", { class: "chip-image", src: item.image, alt: "" }) : null,
      element("span", { class: "chip-name", title: item.name }, item.name), element("span", { class: "chip-size" }, sizeText(sizeOf(item))),
      button("×", () => this.remove(item), { class: "quiet", "aria-label": `Remove ${item.name}`, title: "Remove" }))));
  }
}
