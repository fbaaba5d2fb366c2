"""What differs per CPU family: integer dots of 64 weight bytes with 64 activation bytes, and code-book look-ups.

Every target gives the same integers; they differ in speed. `choose` picks by the features Numba compiles for, or by
name (the tests force each). A dot is a small object used while code is emitted: `step` adds a product, `finish`
returns int32[16]. At most MOST_STEPS steps lie between the start of a dot and its `finish`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.backends.cpu.emit import Builder, Value
from edgeinfer.errors import BadSetting

CODE_BITS = (2, 3, 4, 5, 6, 8)
"""Widths of weight codes: a code of b bits is 0..2**b - 1."""

MOST_STEPS = 8
"""A block of 32 columns, four columns a step."""


class Dot(Protocol):
    """A running sum of products: int32[16] += sum over fours of weight code * activation (-127..127)."""

    def step(self, builder: Builder, weights: Value, activations: Value) -> None: ...

    def finish(self, builder: Builder) -> Value: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The code of one CPU family, for kernels to choose tiles by and to emit."""

    name: str
    needs: tuple[str, ...]
    registers: int
    """Vector registers that a tile may use."""
    register_bytes: int
    """Bytes of one of them: a vector of 64 bytes takes 64 / register_bytes."""
    dot: Callable[[Builder, Value, int], Dot]
    """dot(builder, initial, code_bits) starts from int32[16] `initial`; weights are unsigned codes of CODE_BITS."""
    lookup: Callable[[Builder, Sequence[int], Value], Value]
    """lookup(builder, table, indices): table[index] of 64 bytes 0..15, for 16 numbers of -128..255 kept as bytes."""
    signed_dot: Callable[[Builder, Value], Dot] | None = None
    """signed_dot(builder, initial): weight bytes are code + 128 as for `dot` with 8 bits, but multiplied as the code
    (-128..127): `initial` holds no correction for the 128. None where that is no faster."""

    @property
    def vectors(self) -> int:
        """Vectors of 64 bytes that registers hold at once: a tile with more of them is kept in memory."""
        return self.registers * self.register_bytes // 64

    @property
    def signed_bytes(self) -> bool:
        """Whether 8-bit codes are faster by `signed_dot`."""
        return self.signed_dot is not None


NAMES = ("amx", "avx512vnni", "avxvnni", "avx2", "neon", "portable")
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
