"""Integer dot products of one CPU family each: 64 weight bytes times 64 activation bytes, summed by fours.

Every target gives the same integers; they differ in speed. `choose` picks by the features Numba compiles for, or by
name (the tests force each). A dot is a small object used while code is emitted: `step` adds a product, `finish`
returns int32[16].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.backends.cpu.emit import Builder, Value
from edgeinfer.errors import BadSetting


class Dot(Protocol):
    """A running sum of products: int32[16] += sum over fours of weight (0..255 or 0..15) * activation (-127..127)."""

    def step(self, builder: Builder, weights: Value, activations: Value) -> None: ...

    def finish(self, builder: Builder) -> Value: ...


@dataclass(frozen=True, slots=True)
class Target:
    """How to make a dot that starts from `initial` for weights of `code_bits` (4: 0..15, 8: 0..255)."""

    name: str
    needs: tuple[str, ...]
    dot: Callable[[Builder, Value, int], Dot]


NAMES = ("avx512vnni", "avx2", "portable")
"""Fastest first."""


def target(name: str) -> Target:
    """The target of that name. Raises BadSetting for another name."""
    if name not in NAMES:
        raise BadSetting(f"no instruction set is called {name!r}; edgeinfer has: {', '.join(NAMES)}")
    module = importlib.import_module(f"edgeinfer.backends.cpu.targets.{name}")
    found: Target = module.TARGET
    return found


def choose(features: frozenset[str], forced: str | None = None) -> Target:
    """The fastest target whose features are all there, or the forced one. Raises BadSetting if that cannot run."""
    if forced:
        wanted = target(forced)
        if missing := sorted(set(wanted.needs) - features):
            works = ", ".join(name for name in NAMES if features.issuperset(target(name).needs))
            raise BadSetting(f"this CPU cannot run {forced}: it has no {', '.join(missing)}; use one of: {works}")
        return wanted
    return next(each for each in map(target, NAMES) if features.issuperset(each.needs))
