"""The inputs and outputs of a decoder folder's graph, matched with what edgeinfer can supply.

In: a folder's settings, the inputs and outputs of its graph. Out: `DecoderPorts`, or UnsupportedModel naming what does
not match. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeinfer.backends.onnx.decoder_cache import CachePort
from edgeinfer.backends.onnx.session import Port
from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.decoder_folder import DecoderFolder

BRANCH = "use_cache_branch"
"""In optimum's merged graphs: selects which of the two halves runs."""
TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "tensor(float)": np.dtype(np.float32),
        "tensor(float16)": np.dtype(np.float16),
        "tensor(int64)": np.dtype(np.int64),
        "tensor(int32)": np.dtype(np.int32),
        "tensor(bool)": np.dtype(np.bool_),
    }
)
FLOATS = (np.dtype(np.float32), np.dtype(np.float16))
CACHE_DIMENSIONS = 4
MOST_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A supported input or output, and the type of its numbers."""

    name: str
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """Tokens and the mask are [1, T] and [1, S + T]; `positions` and `branch` are None if the graph has none."""

    tokens: NamedPort
    mask: NamedPort | None
    positions: NamedPort | None
    branch: NamedPort | None
    logits: NamedPort
    n_vocab: int
    cache: tuple[CachePort, ...]


def ports_of(folder: DecoderFolder, inputs: Sequence[Port], outputs: Sequence[Port]) -> DecoderPorts:
    """The ports of a graph. Raises UnsupportedModel."""
    wanted, given, names = {port.name: port for port in inputs}, {port.name: port for port in outputs}, folder.names
    cache = _cache_ports(folder, wanted, given)
    known = {names.tokens, names.mask, names.positions, BRANCH, *(port.past for port in cache)}
    if unknown := sorted(set(wanted) - known):
        raise UnsupportedModel(
            f"{folder.graph} wants the input {', '.join(map(repr, unknown[:3]))}, which edgeinfer does not give; it "
            f"gives {names.tokens}, {names.mask}, {names.positions} and past keys and values"
        )
    if names.tokens not in wanted:
        raise UnsupportedModel(f"{folder.graph} has no input {names.tokens}; it has {', '.join(sorted(wanted)[:5])}")
    if isinstance(wanted[names.tokens].shape[1], int):
        n_fixed = wanted[names.tokens].shape[1]
        raise UnsupportedModel(f"{folder.graph} reads {n_fixed} tokens at a time; export it with a length of its own")
    named = {name: _flat(folder, wanted.get(name)) for name in (names.tokens, names.mask, names.positions)}
    tokens = named[names.tokens]
    assert tokens is not None
    logits, n_vocab = _logits(folder, given)
    return DecoderPorts(
        tokens=tokens,
        mask=named[names.mask],
        positions=named[names.positions],
        branch=_named(folder, wanted[BRANCH]) if BRANCH in wanted else None,
        logits=logits,
        n_vocab=n_vocab,
        cache=cache,
    )


def _cache_ports(folder: DecoderFolder, wanted: dict[str, Port], given: dict[str, Port]) -> tuple[CachePort, ...]:
    """Past and present of every layer's keys and values. Raises UnsupportedModel if they are missing or incomplete."""
    found: list[CachePort] = []
    for layer in range(MOST_LAYERS):
        for past, present in zip(folder.names.past, folder.names.present, strict=True):
            port, name = wanted.get(_of_layer(past, layer)), _of_layer(present, layer)
            if port is None:
                continue
            if name not in given:
                raise UnsupportedModel(
                    f"{folder.graph} reads {port.name} and gives no {name}; it gives {', '.join(sorted(given)[:5])}"
                )
            found.append(_cache_port(folder, port, name))
    if not found:
        raise UnsupportedModel(
            f"{folder.graph} keeps no past: it has no input {_of_layer(folder.names.past[0], 0)}; export it with its "
            "cache (optimum-cli export onnx --task text-generation-with-past)"
        )
    return tuple(found)


def _cache_port(folder: DecoderFolder, port: Port, present: str) -> CachePort:
    if len(port.shape) != CACHE_DIMENSIONS:
        raise UnsupportedModel(
            f"{folder.graph}: {port.name} has {len(port.shape)} dimensions; edgeinfer keeps [batch, heads, rows, width]"
        )
    heads, width = (
        size if isinstance(size, int) else told
        for size, told in ((port.shape[1], folder.kv_heads), (port.shape[3], folder.head_width))
    )
    if not heads or not width or heads < 1 or width < 1:
        raise UnsupportedModel(
            f"neither {folder.graph} nor a config.json beside it says how many heads {port.name} has and how wide they "
            "are; put the model's config.json into the folder"
        )
    dtype = _named(folder, port).dtype
    if dtype not in FLOATS:
        raise UnsupportedModel(f"{folder.graph}: {port.name} is {port.kind}; edgeinfer keeps float and float16")
    return CachePort(port.name, present, heads, width, dtype)


def _logits(folder: DecoderFolder, given: dict[str, Port]) -> tuple[NamedPort, int]:
    """The logits output and its width. Raises UnsupportedModel if logits are not computed for every token."""
    port = given.get(folder.names.logits)
    if port is None:
        raise UnsupportedModel(
            f"{folder.graph} gives no {folder.names.logits}; it gives {', '.join(sorted(given)[:5])}"
        )
    if len(port.shape) != 3 or port.shape[1] == 1:
        raise UnsupportedModel(
            f"{folder.graph} gives {port.name} of the shape {list(port.shape)}; edgeinfer wants those of every token, "
            "[batch, tokens, vocabulary]: export it so (without prune_lm_head)"
        )
    last = port.shape[2]
    n_vocab = last if isinstance(last, int) else folder.n_vocab
    if not n_vocab or n_vocab < 1:
        raise UnsupportedModel(f"neither {folder.graph} nor a config.json beside it says how many logits there are")
    named = _named(folder, port)
    if named.dtype not in FLOATS:
        raise UnsupportedModel(f"{folder.graph}: {port.name} is {port.kind}; edgeinfer reads float and float16")
    return named, n_vocab


def _flat(folder: DecoderFolder, port: Port | None) -> NamedPort | None:
    """An input [batch, tokens]. Raises UnsupportedModel for other shapes."""
    if port is None:
        return None
    if len(port.shape) != 2:
        raise UnsupportedModel(
            f"{folder.graph}: {port.name} has {len(port.shape)} dimensions; edgeinfer gives [batch, tokens]"
        )
    return _named(folder, port)


def _named(folder: DecoderFolder, port: Port) -> NamedPort:
    if port.kind not in TYPES:
        raise UnsupportedModel(f"{folder.graph}: {port.name} is {port.kind}; edgeinfer has {', '.join(TYPES)}")
    return NamedPort(port.name, TYPES[port.kind])


def _of_layer(pattern: str, layer: int) -> str:
    return pattern.replace("%d", str(layer))
