"""What Ollama's names of a model say of its chats: the `params` and `system` layers of their manifests.

In: the path of a model's file. Out: sampling options by our names, texts at which answers of chats end, and the system
prompt of chats that have none; nothing for a file that is no blob of Ollama's. If several names share a file, what they
agree on. Layers in Go's template language and the length of the context are not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.author_sampling import read_options
from edgeinfer.models.sources.ollama import DIGEST, MODEL_LAYER, blob_path, layers_of, manifests_in

PARAMS_LAYER = "application/vnd.ollama.image.params"
SYSTEM_LAYER = "application/vnd.ollama.image.system"
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
    """Sampling options, texts that end an answer, and the system prompt of chats without their own.

    `unused`: names of parameters that edgeinfer does not follow.
    """

    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    stops: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    system: str = ""


def ollama_params(path: Path) -> OllamaParams:
    """The parameters of a blob; none for any other file."""
    if path.parent.name != "blobs" or DIGEST.fullmatch(path.name) is None:
        return OllamaParams()
    found = list(_records(path.parent.parent, path.name))
    if not found:
        return OllamaParams()
    agreed = _agreed(params for params, _ in found)
    systems = {system for _, system in found}
    known = {key: agreed[name] for name, key in NAMES.items() if name in agreed}
    stops = agreed.get("stop", ())
    stops = stops if isinstance(stops, list) else [stops]
    return OllamaParams(
        read_options(known),
        tuple(stop for stop in stops if isinstance(stop, str) and stop)[:MOST_STOPS],
        tuple(sorted(agreed.keys() - NAMES.keys() - {"stop"})),
        systems.pop() if len(systems) == 1 else "",
    )


def _agreed(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What all records have alike."""
    return reduce(lambda one, other: {key: one[key] for key in one if other.get(key) == one[key]}, records)


def _records(folder: Path, blob: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The parameters and the system prompt under each name of a blob; {} and "" for a name without any."""
    for manifest in manifests_in(folder):
        with suppress(EdgeInferError, OSError):
            layers = dict(layers_of(manifest))
            model = DIGEST.fullmatch(layers.get(MODEL_LAYER, ""))
            if model is not None and f"sha256-{model[1]}" == blob:
                yield (
                    _params(_layer(folder, layers.get(PARAMS_LAYER, ""))),
                    _layer(folder, layers.get(SYSTEM_LAYER, "")),
                )


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
