"""What differs per CPU family: integer dots of 64 weight bytes with 64 activation bytes, and table look-ups.

Every target gives the same integers; they differ only in speed. `choose` picks a target by the features that Numba
compiles for, or by name (the tests force each). A dot is a small object used while code is emitted: `step` adds a
product, `finish` returns int32[16]. At most MOST_STEPS steps lie between the start of a dot and its `finish`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from edgeinfer.errors import BadSetting
from edgeinfer.jit.cpu import TILE_FEATURES

if TYPE_CHECKING:
    from edgeinfer.jit.emit import Builder, Value

CODE_BITS = (2, 3, 4, 5, 6, 8)
"""Widths of weight codes: a code of b bits is 0..2**b - 1."""

MOST_STEPS = 8
"""Most steps of a dot: a block of 32 columns, four columns a step."""


class Dot(Protocol):
    """A running sum of products: int32[16] += sum over groups of four of weight code * activation (-127..127)."""

    def step(self, builder: Builder, weights: Value, activations: Value) -> None: ...

    def finish(self, builder: Builder) -> Value: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The code of one CPU family: what kernels need to choose tiles and to emit products."""

    name: str
    registers: int
    """Vector registers that a tile may use."""
    register_bytes: int
    """Bytes of a register: a vector of 64 bytes takes 64 / register_bytes of them."""
    dot: Callable[[Builder, Value, int], Dot]
    """dot(builder, initial, code_bits) starts from int32[16] `initial`; weights are unsigned codes of CODE_BITS."""
    lookup: Callable[[Builder, Sequence[int], Value], Value]
    """lookup(builder, table, indices): table[index] for 64 index bytes 0..15; the 16 entries (-128..255) are bytes."""
    negated: Callable[[Builder, Value, Value], Value]
    """negated(builder, values, signs): 64 bytes (-127..127), those with a negative byte in `signs` negated."""
    levels: Callable[[Builder, Value, int], Value]
    """levels(builder, codes, half): float32[16] of code - 7.5 for the low (half 0) or high four bits of int32[16] below
    256."""
    signed_dot: Callable[[Builder, Value], Dot] | None = None
    """signed_dot(builder, initial): weight bytes are code + 128 as for `dot` with 8 bits, but the code (-128..127) is
    multiplied, so `initial` holds no correction for the 128. None if that is no faster.
    """
    gather: Callable[[Builder, Value, Value, int], Value] | None = None
    """gather(builder, table, places, n_bytes): what lies at table + 8 * place, 4 or 8 bytes, for int32[16] places, as
    int32[16] or int32[32]. None if loading them one by one is as fast.
    """

    @property
    def vectors(self) -> int:
        """64-byte vectors that fit in the registers at once: a tile with more vectors spills to memory."""
        return self.registers * self.register_bytes // 64

    @property
    def signed_bytes(self) -> bool:
        """Whether 8-bit codes are faster with `signed_dot`."""
        return self.signed_dot is not None


NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "amx": (*TILE_FEATURES, "avx512vnni", "avx512f", "avx512bw"),
        "avx512fp16": ("avx512fp16", "avx512vnni", "avx512f", "avx512bw"),
        "avx512vnni": ("avx512vnni", "avx512f", "avx512bw"),
        "avxvnni": ("avxvnni", "avx2", "fma", "f16c"),
        "avx2": ("avx2", "fma", "f16c"),
        "neon": ("neon", "dotprod"),
        "portable": (),
    }
)
"""Features that instruction sets need, the fastest set first. "amx" serves many tokens; its vectors are AVX-512's.

"avx512fp16" is AVX-512 VNNI on processors that have float16 arithmetic too: theirs gather fast.
"""

WIDE = frozenset({"avx512fp16", "avx512vnni"})
"""Instruction sets whose registers hold 32 vectors of 64 bytes at once; those of all others hold fewer."""


def target(name: str) -> Target:
    """The code for the instruction set of that name."""
    module = importlib.import_module(f"edgeinfer.jit.targets.{name}")
    found: Target = module.TARGET
    return found


def choose(features: frozenset[str], forced: str | None = None) -> str:
    """The fastest instruction set whose features are all available, or the forced one.

    Raises BadSetting if there is no set of that name or it cannot run. Loads no compiler.
    """
    if not forced:
        return next(name for name, needs in NEEDS.items() if features.issuperset(needs))
    if forced not in NEEDS:
        raise BadSetting(f"no instruction set is called {forced!r}; edgeinfer has: {', '.join(NEEDS)}")
    if missing := sorted(set(NEEDS[forced]) - features):
        works = ", ".join(name for name, needs in NEEDS.items() if features.issuperset(needs))
        raise BadSetting(f"this CPU cannot run {forced}: it has no {', '.join(missing)}; use one of: {works}")
    return forced
