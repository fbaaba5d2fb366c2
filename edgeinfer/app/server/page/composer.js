// The composer: the text that is being written, its attachments, and the keys that send it.
// In: keys, pastes, dropped and chosen files. Out: `actions.send(text, attachments)` and `actions.editLast()`.

import { LONG_PASTE_CHARACTERS } from "./attachments.js";
import { Chips } from "./chips.js";
import { $, on } from "./elements.js";

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

export class Composer {
  /** `actions`: send, editLast, and isBusy, which says whether an answer is being written. */
  constructor(actions) {
    this.actions = actions;
    this.pasted = null; // the attachment that was pasted last
    this.chips = new Chips($("chips"), (text, isFault) => this.tell(text, isFault));
    on("composer", "submit", (event) => { event.preventDefault(); this.send(); });
    on("input", "input", () => this.fit());
    on("input", "keydown", (event) => this.typed(event));
    on("input", "paste", (event) => this.paste(event));
    on("attach", "click", () => $("attached").click());
    on("attached", "change", () => { this.attach([...$("attached").files]); $("attached").value = ""; });
    addEventListener("resize", () => this.fit());
    this.takeDrops();
  }

  /** Offer to attach images if the model reads them. */
  showSight(sees) {
    const what = sees ? "images or text files" : "text files";
    this.chips.sees = sees;
    for (const name of ["aria-label", "title"]) $("attach").setAttribute(name, `Attach ${what}`);
    $("drop").firstElementChild.textContent = `Drop ${what} to attach them`;
  }

  /** Say below the chips what became of files. */
  tell(text, isFault = false) {
    $("attach-note").textContent = text;
    $("attach-note").classList.toggle("fault", isFault);
    $("attach-note").hidden = !text;
  }

  async attach(files) {
    await this.chips.addFiles(files);
    $("input").focus();
  }

  typed(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    } else if (event.key === "ArrowUp" && !$("input").value && !this.actions.isBusy() && this.actions.editLast()) {
      event.preventDefault();
    }
  }

  async send() {
    await this.chips.ready;
    const text = $("input").value;
    if ((!text.trim() && !this.chips.items.length) || this.actions.isBusy()) return;
    $("input").value = "";
    this.pasted = null;
    this.fit();
    if (matchMedia("(pointer: fine)").matches) $("input").focus(); // elsewhere it would open a keyboard over the answer
    this.actions.send(text, this.chips.take());
  }

  /** Files and long texts become attachments; the same text once more goes into the message. */
  paste(event) {
    const text = event.clipboardData.getData("text/plain").replaceAll("\r\n", "\n"), files = [...event.clipboardData.files];
    if (files.length && !text) {
      event.preventDefault();
      this.attach(files);
    } else if (text.length > LONG_PASTE_CHARACTERS) {
      if (this.pasted?.text === text && this.chips.items.includes(this.pasted)) {
        this.chips.remove(this.pasted);
        this.pasted = null;
        return;
      }
      event.preventDefault();
      try {
        this.pasted = this.chips.addPasted(text);
        this.tell("Attached, as it is long; paste again to have it in the message.");
      } catch (reason) {
        this.tell(reason.message, true);
      }
    }
  }

  /** Files may be dropped anywhere on the page; the browser would open them in its place. */
  takeDrops() {
    const show = (isOver) => { $("drop").hidden = !isOver; };
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      show(true);
    });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) show(false); });
    addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(false);
      this.attach([...event.dataTransfer.files]);
    });
  }

  /** As high as the text, up to a limit in the style sheet. */
  fit() {
    $("input").style.height = "auto";
    $("input").style.height = `${$("input").scrollHeight + 2}px`;
  }
}
