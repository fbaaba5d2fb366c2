// The choice of a model: what the server lists, and what it says of each.
// In: records of /v1/models. Out: options of the list, words about a model that is being loaded.

import { element } from "./elements.js";
import { sizeText } from "./numbers.js";

const percent = (share) => (Number.isFinite(share) ? ` ${Math.round(100 * share)} %` : "");

/** The options for a list of models, of which `model` is chosen; "" is the server's own choice. */
export function modelOptions(models, model) {
  const isMissing = model && models.length && !models.some(({ id }) => id === model);
  const standard = models.length ? `default: ${models[0].id}` : "default model";
  return [
    option("", standard, model),
    ...models.map((one) => option(one.id, described(one), model, one.status?.value === "downloading")),
    ...(isMissing ? [option(model, `${model} · not here`, model)] : []),
  ];
}

/** The model of a name, or the server's own choice. */
const chosen = (models, model) => models.find(({ id, aliases }) => id === model || aliases?.includes(model)) ?? models[0] ?? {};

/** Whether a model reads images. */
export const readsImages = (models, model) => chosen(models, model).architecture?.input_modalities?.includes("image") ?? false;

/** What a model's loading has come to; "" if it is not being loaded. */
export function loadingText(models, model) {
  const { status } = chosen(models, model);
  return status?.value === "loading" ? `loading the model${percent(status.progress?.value)}` : "";
}

function described({ id, size_bytes, status = {} }) {
  const size = size_bytes ? sizeText(size_bytes) : "";
  const state = status.failed ? "cannot be loaded" : status.value === "unloaded" ? "" : `${status.value ?? ""}${percent(status.progress?.value)}`;
  return [id, size, state].filter(Boolean).join(" · ");
}

const option = (value, text, chosen, disabled = false) => element("option", { value, selected: value === chosen, disabled }, text);
