"""What Ollama's names of a model say of its sampling: the `params` layers of their manifests.

In: the path of a model's file. Out: sampling options by our names, and texts at which answers of chats end; nothing for
a file that is no blob of Ollama's. If several names share a file, what they agree on. Layers in Go's template language,
systems and the length of the context are not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
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
PARAMS_CAP_BYTES = 1 << 16
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
    """Sampling options, and texts that end an answer. `unused`: names of parameters that edgeinfer does not follow."""

    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    stops: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def ollama_params(path: Path) -> OllamaParams:
    """The parameters of a blob; none for any other file."""
    if path.parent.name != "blobs" or DIGEST.fullmatch(path.name) is None:
        return OllamaParams()
    found = list(_records(path.parent.parent, path.name))
    if not found:
        return OllamaParams()
    agreed = reduce(lambda one, other: {key: one[key] for key in one if other.get(key) == one[key]}, found)
    known = {key: agreed[name] for name, key in NAMES.items() if name in agreed}
    stops = agreed.get("stop", ())
    stops = stops if isinstance(stops, list) else [stops]
    return OllamaParams(
        read_options(known),
        tuple(stop for stop in stops if isinstance(stop, str) and stop)[:MOST_STOPS],
        tuple(sorted(agreed.keys() - NAMES.keys() - {"stop"})),
    )


def _records(folder: Path, blob: str) -> Iterator[dict[str, Any]]:
    """The parameters under each name of a blob; {} for a name without any."""
    for manifest in manifests_in(folder):
        with suppress(EdgeInferError, OSError, ValueError, RecursionError):
            layers = dict(layers_of(manifest))
            model = DIGEST.fullmatch(layers.get(MODEL_LAYER, ""))
            if model is None or f"sha256-{model[1]}" != blob:
                continue
            params = DIGEST.fullmatch(layers.get(PARAMS_LAYER, ""))
            yield {} if params is None else _read(blob_path(folder, params[1]))


def _read(path: Path) -> dict[str, Any]:
    if path.stat().st_size > PARAMS_CAP_BYTES:
        return {}
    found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}
