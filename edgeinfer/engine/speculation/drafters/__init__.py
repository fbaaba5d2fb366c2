"""Drafters, which propose tokens that may come next. This folder is the registry: each file exports `DRAFTER`.

A drafter has draft sources, which are compiled functions that propose tokens at a node of a tree, and the tables that
they use; a session's tables read its tokens from a `TokenLog`. Proposals are always verified, and accepted ones are
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.code import CodeSource, CompiledFunction
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.registry import Registry

LOOPS = "edgeinfer.engine.speculation.loops"
NOT_LISTED = "draft_model", "self_draft", "trained_head"
DRAFTERS: Registry[Drafter] = Registry(__name__, "DRAFTER", "drafter", skip=NOT_LISTED)
FIRST_CAPACITY = 4096
MOST_TOKENS = 1 << 18
"""A log that would grow longer than this with a new text starts anew."""


class SessionTables(Protocol):
    """A drafter's tables for one session; drafters that hold no texts may return the model's tables."""

    @property
    def address(self) -> int:
        """Address of the record that is passed to the drafter's functions."""
        ...

    def follow(self, log: TokenLog) -> None:
        """Set the log that trees continue; called again whenever its memory moved or it began anew."""
        ...

    def reserve(self, n_tokens: int) -> None:
        """Make room for a log of `n_tokens` tokens, and then an answer."""
        ...


class Tables(Protocol):
    """A drafter's tables for all sessions of a model."""

    @property
    def nbytes(self) -> int: ...

    def session(self) -> SessionTables:
        """Tables for one more session."""
        ...

    def arrays(self) -> Mapping[str, Int32s]:
        """Arrays worth saving for next time; saved values may be written into them before any session uses them."""
        ...


class SharedRows:
    """Tables of int32 rows that are independent of texts: all sessions share them, and all rows are saved."""

    def __init__(self, rows: Int32s, record: NDArray[np.void]) -> None:
        """`record`: passed to the drafter's functions; it holds the address of the rows."""
        self.rows = rows
        self._record = record

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def session(self) -> SessionTables:
        """Return these tables, which all sessions share."""
        return self

    def arrays(self) -> Mapping[str, Int32s]:
        """All rows."""
        return {"rows": self.rows}

    def follow(self, log: TokenLog) -> None:
        """Do nothing: texts are not used."""

    def reserve(self, n_tokens: int) -> None:
        """Do nothing: the size is fixed."""


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A source of proposals: `speak(tables, tree, node)` proposes tokens, each in a bucket 0 .. n_buckets - 1."""

    name: str
    speak: CompiledFunction
    n_buckets: int


@dataclass(frozen=True, slots=True)
class Drafter:
    """What a file of this folder exports.

    open     creates the tables of a model, given the vocabulary size and the library with the compiled functions
    read     read(tables, n_log, 0): the log was extended
    learn    learn(tables, tree, node): a node was evaluated; its highest logits are in the tree
    helpers  further compiled functions
    """

    draft_sources: tuple[DraftSource, ...]
    open: Callable[[int, KernelLibrary], Tables]
    read: CompiledFunction | None = None
    learn: CompiledFunction | None = None
    helpers: tuple[CompiledFunction, ...] = ()

    @property
    def functions(self) -> list[CompiledFunction]:
        """All functions that must be compiled."""
        found = [*(draft_source.speak for draft_source in self.draft_sources), self.read, self.learn, *self.helpers]
        return [function for function in found if function is not None]


def loop(module: str, name: str, n_arguments: int = 3) -> CompiledFunction:
    """A compiled function of a module of `loops`; functions of one argument return a number."""
    source = CodeSource(LOOPS, module, name)
    return CompiledFunction(f"{module}.{name}", source, n_arguments, returns=n_arguments == 1)


class TokenLog:
    """Texts in the order in which they were seen; the last one grows.

    `moved` is called with the log when its memory moves.
    """

    def __init__(self, moved: Callable[[TokenLog], None]) -> None:
        self._moved = moved
        self.tokens: Int32s = np.empty(FIRST_CAPACITY, np.int32)
        self.n_tokens = 0
        self._text: list[int] = []
        moved(self)

    @property
    def address(self) -> int:
        return int(self.tokens.ctypes.data)

    @property
    def capacity(self) -> int:
        return len(self.tokens)

    def begin(self, text: Sequence[int]) -> None:
        """Continue the last text if `text` continues it, else begin a new one."""
        known = len(self._text)
        if self._text != list(text[:known]):
            if self.n_tokens + len(text) + 1 > MOST_TOKENS:
                self.n_tokens = 0
                self._moved(self)
            elif self.n_tokens:
                self._append([NO_TOKEN])
            self._text = []
        self.follow(text)

    def follow(self, text: Sequence[int]) -> None:
        """Append what the last text has gained."""
        new = text[len(self._text) :]
        if new:
            self._append(new)
            self._text.extend(new)

    def _append(self, tokens: Sequence[int]) -> None:
        stop = self.n_tokens + len(tokens)
        if stop > self.capacity:
            grown = np.empty(max(2 * self.capacity, stop), np.int32)
            grown[: self.n_tokens] = self.tokens[: self.n_tokens]
            self.tokens = grown
            self._moved(self)
        self.tokens[self.n_tokens : stop] = tokens
        self.n_tokens = stop
