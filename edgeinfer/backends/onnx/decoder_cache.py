"""Keys and values of one sequence, for a decoder graph written by another program.

In: how many tokens a pass has, and how many of them are accepted. Out: arrays bound to the graph's past and present.
Graphs work in one of two ways: present is past followed by new rows, in other memory; or new rows are written to the
memory of the past. Every array is number[1, G, rows, K]. Independent of token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.onnx.session import GraphSession
from edgeinfer.graph.step import PAGE

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
