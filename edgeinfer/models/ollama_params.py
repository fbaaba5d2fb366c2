"""What Ollama's names of a model say of it: the `params`, `system`, `template` and `adapter` layers of their manifests.

In: the path of a model's file, and the name that was asked for. Out: sampling options by our names, texts at which
answers of chats end, the system prompt of chats that have none, the chat template in Go's language, the LoRA adapters
and the projector of the name; nothing for a file that is no blob of Ollama's. If several names share a file and none
was asked for, what they agree on. Example messages and the length of the context are not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.author_sampling import read_options
from edgeinfer.models.sources.ollama import (
    DIGEST,
    MODEL_LAYER,
    PREFIX,
    blob_path,
    layers_of,
    manifests_in,
    ollama_name,
)

PARAMS_LAYER = "application/vnd.ollama.image.params"
SYSTEM_LAYER = "application/vnd.ollama.image.system"
TEMPLATE_LAYER = "application/vnd.ollama.image.template"
ADAPTER_LAYER = "application/vnd.ollama.image.adapter"
MESSAGES_LAYER = "application/vnd.ollama.image.messages"
PROJECTOR_LAYER = "application/vnd.ollama.image.projector"
Value = TypeVar("Value")
LAYER_CAP_BYTES = 1 << 16
MOST_STOPS = 32
NAMES: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "temp",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "repeat_penalty": "penalty_repeat",
        "repeat_last_n": "penalty_last_n",
    }
)
"""Ollama's names of what a file's `general.sampling` has too."""


@dataclass(frozen=True, slots=True)
class OllamaParams:
    """Sampling options, texts that end an answer, the system prompt of chats without their own, and LoRA adapters.

    `projector`: the file with which the model reads images. `template`: of chats, in Go's language. `unused`: names of
    parameters, and of what else belongs to the name, that edgeinfer does not follow.
    """

    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    stops: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    system: str = ""
    template: str = ""
    adapters: tuple[Path, ...] = ()
    projector: Path | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    """What one name of a blob says of it; {}, "" and () where it says nothing."""

    source: str
    params: dict[str, Any]
    system: str
    template: str
    adapters: tuple[Path, ...]
    projector: Path | None


def ollama_params(path: Path, source: str = "") -> OllamaParams:
    """The parameters of a blob; none for any other file.

    `source`: ollama:NAME:TAG, whose parameters they are; without it, or if it is another file's, those that all names
    of the blob have alike.
    """
    if path.parent.name != "blobs" or DIGEST.fullmatch(path.name) is None:
        return OllamaParams()
    records = list(_records(path.parent.parent, path.name))
    found = [each for each in records if each.source == source] or records
    if not found:
        return OllamaParams()
    agreed = _agreed(each.params for each in found)
    known = {key: agreed[name] for name, key in NAMES.items() if name in agreed}
    stops = agreed.get("stop", ())
    stops = stops if isinstance(stops, list) else [stops]
    return OllamaParams(
        read_options(known),
        tuple(stop for stop in stops if isinstance(stop, str) and stop)[:MOST_STOPS],
        tuple(sorted(agreed.keys() - NAMES.keys() - {"stop"})),
        _shared((each.system for each in found), ""),
        _shared((each.template for each in found), ""),
        _shared((each.adapters for each in found), ()),
        _shared((each.projector for each in found), None),
    )


def _shared(values: Iterable[Value], otherwise: Value) -> Value:
    """The value that all names have, if it is one."""
    found = set(values)
    return found.pop() if len(found) == 1 else otherwise


def _agreed(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What all records have alike."""
    return reduce(lambda one, other: {key: one[key] for key in one if other.get(key) == one[key]}, records)


def _records(folder: Path, blob: str) -> Iterator[_Record]:
    """What each name of a blob says."""
    for manifest in manifests_in(folder):
        with suppress(EdgeInferError, OSError):
            given = layers_of(manifest)
            layers = dict(given)
            model = DIGEST.fullmatch(layers.get(MODEL_LAYER, ""))
            if model is not None and f"sha256-{model[1]}" == blob:
                params = _params(_layer(folder, layers.get(PARAMS_LAYER, "")))
                adapters = (DIGEST.fullmatch(digest) for kind, digest in given if kind == ADAPTER_LAYER)
                yield _Record(
                    f"{PREFIX}{ollama_name(*manifest.parts[-4:])}",
                    {**params, "messages": layers[MESSAGES_LAYER]} if MESSAGES_LAYER in layers else params,
                    _layer(folder, layers.get(SYSTEM_LAYER, "")),
                    _layer(folder, layers.get(TEMPLATE_LAYER, "")),
                    tuple(blob_path(folder, digest[1]) for digest in adapters if digest is not None),
                    _projector(folder, layers.get(PROJECTOR_LAYER, "")),
                )


def _projector(folder: Path, digest: str) -> Path | None:
    found = DIGEST.fullmatch(digest)
    return None if found is None else blob_path(folder, found[1])


def _layer(folder: Path, digest: str) -> str:
    """The text of a layer; "" if there is none that can be read."""
    found = DIGEST.fullmatch(digest)
    if found is None:
        return ""
    with suppress(OSError, ValueError):
        path = blob_path(folder, found[1])
        return path.read_text("utf-8") if path.stat().st_size <= LAYER_CAP_BYTES else ""
    return ""


def _params(text: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    return {}
