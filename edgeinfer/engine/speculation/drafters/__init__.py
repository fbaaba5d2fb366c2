"""Drafters: who proposes tokens that may come next. The folder is the registry, each file exports `DRAFTER`.

A drafter has voices, compiled functions that propose tokens at a node of a tree, and tables that they look them up in.
It may be wrong in everything: what it proposes is checked, and how far it is believed is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from edgeinfer.backends.cpu.catalogue import Function, Source
from edgeinfer.engine.speculation.log import TokenLog
from edgeinfer.registry import Registry

LOOPS = "edgeinfer.engine.speculation.loops"


class Tables(Protocol):
    """Memory of a drafter."""

    @property
    def address(self) -> int:
        """Of the record that the drafter's functions are given."""
        ...

    @property
    def nbytes(self) -> int: ...

    def follow(self, log: TokenLog) -> None:
        """The log that nodes continue; told again whenever its memory moved."""
        ...


@dataclass(frozen=True, slots=True)
class Voice:
    """A way of proposing: `speak(tables, tree, node)` makes claims 0 .. n_claims - 1 about tokens."""

    name: str
    speak: Function
    n_claims: int


@dataclass(frozen=True, slots=True)
class Drafter:
    """What a file of this folder exports.

    open   makes tables for a vocabulary of so many tokens
    per    whether tables belong to a session, whose log they follow, or to the model
    read   read(tables, n_log, 0): the log was extended
    learn  learn(tables, tree, node): a node was evaluated, its highest logits are in the tree
    """

    voices: tuple[Voice, ...]
    open: Callable[[int], Tables]
    per: Literal["session", "model"]
    read: Function | None = None
    learn: Function | None = None


DRAFTERS: Registry[Drafter] = Registry(__name__, "DRAFTER", "drafter")


def loop(module: str, name: str) -> Function:
    """A compiled function of a module of `loops` that is given three int64s."""
    return Function(f"{module}.{name}", Source(module, name, package=LOOPS), 3, returns=False)
