// The dialogs: settings of a chat, and the API key.
// In: records. Out: records, once the person has said yes.

import { SETTINGS, toolsOf } from "./chats.js";
import { element } from "./elements.js";

const NUMBERS = ["temperature", "top_p", "max_tokens"];
const dialogOf = (id) => {
  const dialog = document.getElementById(id);
  return { dialog, form: dialog.querySelector("form"), fault: dialog.querySelector(".fault") };
};

function tell(fault, text) {
  fault.textContent = text;
  fault.hidden = !text;
}

/** Show a dialog until its form is sent and `take` accepts it, or it is cancelled (null). */
function asked({ dialog, form, fault }, take) {
  tell(fault, "");
  dialog.showModal();
  return new Promise((resolve) => {
    let found = null;
    const close = () => {
      form.onsubmit = dialog.onclose = null;
      resolve(found);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      try {
        found = take(form.elements);
        dialog.close();
        close(); // at once: the event comes later, and what is typed until then would be sent with the old settings
      } catch (reason) {
        tell(fault, reason.message);
      }
    };
    dialog.onclose = close;
  });
}

/** Ask for {system, settings, theme, trusted}; null if the person cancels. `tools`: of MCP servers, as far as they have started. */
export function askSettings(system, settings, theme, tools) {
  const found = dialogOf("settings"), fields = found.form.elements;
  document.getElementById("mcp-used").checked = settings.mcp ?? true;
  showTools(tools, false);
  const shown = { ...SETTINGS, ...settings, system, theme };
  for (const field of fields) if (field.name) field.value = shown[field.name] ?? "";
  return asked(found, () => {
    if (fields.tools.value.trim()) toolsOf(fields.tools.value);
    const numbers = NUMBERS.map((name) => [name, fields[name].value === "" ? null : Number(fields[name].value)]);
    return {
      system: fields.system.value.trim(),
      settings: { ...settings, ...Object.fromEntries(numbers), thinking: fields.thinking.value, tools: fields.tools.value,
        mcp: document.getElementById("mcp-used").checked },
      theme: fields.theme.value,
      trusted: toolBoxes().filter((box) => box.checked && !box.disabled).map((box) => box.value),
    };
  });
}

const toolBoxes = () => [...document.querySelectorAll("#mcp-tools input")];

/**
 * List the tools of MCP servers with boxes for those that are called without a question. `keeps`: boxes that are shown
 * stay as the person has left them, as the dialog may be open when servers have started.
 */
export function showTools(tools, keeps) {
  const before = new Map(keeps ? toolBoxes().map((box) => [box.value, box.checked]) : []);
  document.getElementById("mcp").hidden = !tools.length;
  document.getElementById("mcp-tools").replaceChildren(...tools.map(({ key, description, isFixed, isTrusted }) => {
    const box = element("input", { type: "checkbox", value: key, disabled: isFixed });
    box.checked = before.get(key) ?? isTrusted;
    return element("li", {}, element("label", { title: description },
      box, element("code", {}, key), isFixed ? " trusted by the server's configuration" : null));
  }));
}

/** Ask for the API key; null if the person cancels. */
export function askKey(why) {
  const found = dialogOf("key");
  found.form.reset();
  const answer = asked(found, (fields) => fields.key.value.trim());
  tell(found.fault, why);
  return answer;
}
