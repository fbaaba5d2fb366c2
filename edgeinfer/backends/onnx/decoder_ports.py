"""The inputs and outputs of a decoder folder's graph, matched with what edgeinfer can supply, and its cached rows.

In: a folder's settings, the inputs and outputs of its graph; how many tokens a pass has, and how many of them are
accepted. Out: `DecoderPorts`, or UnsupportedModel naming what does not match; arrays bound to the graph's past and
present. Graphs work in one of two ways: present is past followed by new rows, in other memory; or new rows are written
to the memory of the past. Every array is number[1, G, rows, K]. Independent of token ids; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.onnx.session import GraphSession, Port
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.step import PAGE
from edgeinfer.models.decoder_folder import DecoderFolder

Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CachePort:
    """Keys or values of one layer: names of past and present, heads, head width, number type."""

    past: str
    present: str
    heads: int
    width: int
    dtype: np.dtype[Any]

    def numbers(self, n_rows: int) -> int:
        """Numbers in this many rows."""
        return self.heads * n_rows * self.width


class DecoderCache:
    """The cache of one sequence. `in_place`: the graph writes to the memory of the past."""

    def __init__(self, ports: Sequence[CachePort], *, in_place: bool, most_rows: int) -> None:
        self._ports, self._in_place, self._most_rows = tuple(ports), in_place, most_rows
        self.n_tokens = 0
        self._capacity = 0
        self._past: list[Numbers] = [np.empty(0, port.dtype) for port in ports]
        self._present = self._past

    @property
    def nbytes(self) -> int:
        held = self._past if self._in_place else self._past + self._present
        return sum(array.nbytes for array in held)

    def bind(self, session: GraphSession, n_new: int) -> None:
        """Bind the cached rows for reading, and room for this many new tokens."""
        self._reserve(self.n_tokens + n_new)
        before, after = self.n_tokens, self.n_tokens + n_new
        if self._in_place:
            before = after = self._capacity
        for port, past, present in zip(self._ports, self._past, self._present, strict=True):
            session.bind_input(port.past, past, (1, port.heads, before, port.width))
            session.bind_output(port.present, present, (1, port.heads, after, port.width))

    def keep(self, n_new: int, n_kept: int) -> None:
        """After a pass of n_new tokens, keep the first ones."""
        n_after = self.n_tokens + n_kept
        if not self._in_place:
            if n_kept == n_new:
                self._past, self._present = self._present, self._past
            elif n_kept:
                for index, port in enumerate(self._ports):
                    made = self._view(self._present[index], port, self.n_tokens + n_new)
                    self._view(self._past[index], port, n_after)[...] = made[:, :n_after]
        self.n_tokens = n_after

    def fresh(self, n_new: int) -> list[Numbers]:
        """Copies of the rows added by a pass of n_new tokens: number[G, n_new, K] per array."""
        n_after = self.n_tokens + n_new
        return [
            self._view(present, port, n_after)[:, self.n_tokens : n_after].copy()
            for present, port in zip(self._present, self._ports, strict=True)
        ]

    def append(self, rows: Sequence[Numbers]) -> None:
        """Append rows in the form that `fresh` returns."""
        n_new = rows[0].shape[1]
        n_after = self.n_tokens + n_new
        self._reserve(n_after)
        for index, port in enumerate(self._ports):
            held = self._view(self._past[index], port, self.n_tokens)
            grown = self._view(self._present[index], port, n_after)
            if not self._in_place:
                grown[:, : self.n_tokens] = held
            grown[:, self.n_tokens : n_after] = rows[index]
        self.keep(n_new, n_new)

    def truncate(self, n_tokens: int) -> None:
        """Drop everything after the first tokens."""
        if n_tokens >= self.n_tokens:
            return
        if not self._in_place:
            for array, port in zip(self._past, self._ports, strict=True):
                kept = self._view(array, port, self.n_tokens)[:, :n_tokens].copy()
                self._view(array, port, n_tokens)[...] = kept
        self.n_tokens = n_tokens

    def twin(self) -> DecoderCache:
        """A copy with the same contents."""
        other = DecoderCache(self._ports, in_place=self._in_place, most_rows=self._most_rows)
        if self.n_tokens:
            other.append(self.rows())
        return other

    def rows(self) -> list[Numbers]:
        """Copies of the whole cache: number[G, n_tokens, K] per array."""
        return [
            self._view(array, port, self.n_tokens)[:, : self.n_tokens].copy()
            for array, port in zip(self._past, self._ports, strict=True)
        ]

    def _view(self, array: Numbers, port: CachePort, n_rows: int) -> Numbers:
        """An array as number[G, rows, K], in the graph's layout for this many rows."""
        n_laid = self._capacity if self._in_place else n_rows
        return array[: port.numbers(n_laid)].reshape(port.heads, n_laid, port.width)

    def _reserve(self, n_rows: int) -> None:
        """Make room for this many rows: grow by half, in whole pages."""
        if n_rows <= self._capacity:
            return
        wanted = max(n_rows, min(self._capacity * 3 // 2, self._most_rows))
        held = self.rows()
        self._capacity = -(-wanted // PAGE) * PAGE
        sizes = [port.numbers(self._capacity) for port in self._ports]
        self._past = [np.zeros(size, port.dtype) for size, port in zip(sizes, self._ports, strict=True)]
        self._present = self._past
        if not self._in_place:
            self._present = [np.zeros(size, port.dtype) for size, port in zip(sizes, self._ports, strict=True)]
        for array, port, rows in zip(self._past, self._ports, held, strict=True):
            self._view(array, port, self.n_tokens)[:, : self.n_tokens] = rows


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
