"""Drafters: who proposes tokens that may come next. The folder is the registry, each file exports `DRAFTER`.

A drafter has draft sources, compiled functions that propose tokens at a node of a tree, and tables that they look them
up in. Proposals are always verified, and how many are accepted is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.graph.step import Int32s
from edgeinfer.jit.code import CodeSource, CompiledFunction
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.registry import Registry

LOOPS = "edgeinfer.engine.speculation.loops"


class SessionTables(Protocol):
    """What a drafter has for one session; of those that know no texts it may be the model's own."""

    @property
    def address(self) -> int:
        """Of the record that the drafter's functions are given."""
        ...

    def follow(self, log: TokenLog) -> None:
        """The log that trees continue; told again whenever its memory moved or it began anew."""
        ...

    def reserve(self, n_tokens: int) -> None:
        """The log will have so many tokens, and then an answer."""
        ...


class Tables(Protocol):
    """What a drafter has for all sessions of a model."""

    @property
    def nbytes(self) -> int: ...

    def session(self) -> SessionTables:
        """Tables of one more session."""
        ...

    def arrays(self) -> Mapping[str, Int32s]:
        """Arrays that are worth keeping for the next time; they may be written to before a session uses them."""
        ...


class SharedRows:
    """Tables that are rows of int32 and belong to no text: every session has the model's own, all of it is kept."""

    def __init__(self, rows: Int32s, record: NDArray[np.void]) -> None:
        """`record`: what functions are given; it holds the rows' address."""
        self.rows = rows
        self._record = record

    @property
    def address(self) -> int:
        return int(self._record.ctypes.data)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def session(self) -> SessionTables:
        """The same for all."""
        return self

    def arrays(self) -> Mapping[str, Int32s]:
        """All rows."""
        return {"rows": self.rows}

    def follow(self, log: TokenLog) -> None:
        """Texts are not looked at."""

    def reserve(self, n_tokens: int) -> None:
        """The size is fixed."""


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A way of proposing: `speak(tables, tree, node)` proposes tokens, each in a bucket 0 .. n_buckets - 1."""

    name: str
    speak: CompiledFunction
    n_buckets: int


@dataclass(frozen=True, slots=True)
class Drafter:
    """What a file of this folder exports.

    open     makes the tables of a model, for a vocabulary of so many tokens; compiled functions are the library's
    read     read(tables, n_log, 0): the log was extended
    learn    learn(tables, tree, node): a node was evaluated, its highest logits are in the tree
    helpers  further compiled functions
    """

    draft_sources: tuple[DraftSource, ...]
    open: Callable[[int, KernelLibrary], Tables]
    read: CompiledFunction | None = None
    learn: CompiledFunction | None = None
    helpers: tuple[CompiledFunction, ...] = ()

    @property
    def functions(self) -> list[CompiledFunction]:
        """All that must be compiled."""
        found = [*(draft_source.speak for draft_source in self.draft_sources), self.read, self.learn, *self.helpers]
        return [function for function in found if function is not None]


DRAFTERS: Registry[Drafter] = Registry(__name__, "DRAFTER", "drafter", skip=("draft_model",))


def loop(module: str, name: str, n_arguments: int = 3) -> CompiledFunction:
    """A compiled function of a module of `loops`; those of one argument return a number."""
    source = CodeSource(LOOPS, module, name)
    return CompiledFunction(f"{module}.{name}", source, n_arguments, returns=n_arguments == 1)
