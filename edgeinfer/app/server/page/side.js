// The side of the page: all chats, or what a search over them finds.
// In: chats in this browser's storage, what the person types. Out: the list; which chat is to be opened, at which message.

import { $, button, element, on } from "./elements.js";
import { counted } from "./numbers.js";
import { search } from "./search.js";
import * as storage from "./storage.js";

const PAUSE_MS = 120; // without a key, before the search begins
const MOST_SHOWN = 100;
const titleOf = (chat) => chat.title || "New chat";

export class Side {
  /** `actions`: open(chat, message) and forget(chat). */
  constructor(actions) {
    this.actions = actions;
    this.current = "";
    on("search", "input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.show(), PAUSE_MS);
    });
    on("side", "keydown", (event) => this.key(event));
    on("menu", "click", () => this.open(!this.isOpen()));
    on("veil", "click", () => this.open(false));
  }

  /** Show the chats, or what is searched. `current`: the id of the chat that is open. */
  show(current = this.current) {
    this.current = current;
    const query = $("search").value.trim(), all = storage.allChats();
    const found = query ? search(all, query) : [];
    $("found").hidden = !query;
    $("found").textContent = found.length ? foundText(found) : "Nothing found.";
    $("chats").replaceChildren(...(query ? found.slice(0, MOST_SHOWN).map((one) => this.result(one)) : this.items(all)));
  }

  /** The chats, under words that say when they changed. */
  items(all) {
    let before = "";
    return all.flatMap((chat) => {
      const age = ageOf(chat.changed_s), isNew = age !== before;
      before = age;
      return [...(isNew ? [element("li", { class: "age" }, age)] : []), this.item(chat)];
    });
  }

  item(chat) {
    const isCurrent = chat.id === this.current;
    return element("li", { class: isCurrent ? "current" : null },
      button(titleOf(chat), () => this.actions.open(chat, null), { class: "chat", title: titleOf(chat), "aria-current": isCurrent && "true" }),
      button("×", () => this.actions.forget(chat), { class: "quiet", title: "Delete", "aria-label": `Delete ${titleOf(chat)}` }));
  }

  result({ chat, message, parts }) {
    const open = () => this.actions.open(chat, message?.number ?? null);
    return element("li", {}, element("button", { type: "button", class: "chat result", onclick: open },
      element("strong", {}, titleOf(chat)),
      element("span", {}, ...parts.map(([text, isMatch]) => (isMatch ? element("mark", {}, text) : text)))));
  }

  /** Arrows go through the list, Escape ends the search. */
  key(event) {
    const stops = [$("search"), ...$("chats").querySelectorAll(".chat")], at = stops.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && at >= 0) {
      event.preventDefault();
      stops[at + step]?.focus();
    } else if (event.key === "Enter" && at === 0) {
      clearTimeout(this.timer);
      this.show();
      $("chats").querySelector(".result")?.click();
    } else if (event.key === "Escape" && $("search").value) {
      event.stopPropagation();
      this.endSearch();
      $("search").focus();
    }
  }

  /** List all chats again. */
  endSearch() {
    $("search").value = "";
    this.show();
  }

  /** Begin a search. */
  search() {
    this.open(true);
    $("search").focus();
    $("search").select();
  }

  isOpen = () => document.body.classList.contains("side-open");

  /** Show or hide the side, where the screen is narrow. */
  open(isShown) {
    document.body.classList.toggle("side-open", isShown);
    $("veil").hidden = !isShown;
    $("menu").setAttribute("aria-expanded", String(isShown));
  }
}

function ageOf(seconds) {
  const midnight = new Date().setHours(0, 0, 0, 0), days = (midnight - 1000 * seconds) / 86_400_000;
  if (days <= 0) return "Today";
  return days <= 1 ? "Yesterday" : days <= 7 ? "Last 7 days" : "Earlier";
}

function foundText(found) {
  const nChats = new Set(found.map(({ chat }) => chat.id)).size;
  const more = found.length > MOST_SHOWN ? `; the first ${MOST_SHOWN} are shown` : "";
  return `${counted(found.length, "place")} in ${counted(nChats, "chat")}${more}`;
}
