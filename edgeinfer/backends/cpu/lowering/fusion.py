"""Which ops of a model run as one.

In: the ops in order, the sections they run in, which products are of integers. Out: places of fused ops (a norm with
the rounding after it, a gate and an up product with their activation); `lowering` writes their calls. An op may be
fused into another one of its section only if no other op and no other device reads the result that it would have
stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.take_outputs import TakeOutputs


@dataclass(frozen=True, slots=True)
class Sections:
    """Where sections end: `stops`, and the buffers `exposed` after each, which other devices read."""

    stops: tuple[int, ...]
    exposed: tuple[frozenset[str], ...]

    @classmethod
    def one(cls, n_ops: int) -> Sections:
        """A single section of all ops, whose results are read where the last op left them."""
        return cls((n_ops,), (frozenset(),))

    def number(self, place: int) -> int:
        """The section of the op at a place."""
        return bisect_right(self.stops, place)

    def keeps(self, places: Sequence[int], name: str) -> bool:
        """Whether these ops run in one section after which no other device reads this buffer."""
        first = self.number(places[0])
        return self.number(places[-1]) == first and name not in self.exposed[first]


@dataclass(frozen=True, slots=True)
class Fusion:
    """Places of ops that are fused into others.

    `rounded_norms`: norms whose result only integer products read, so it is stored as int8 alone. `taken_rows`: output
    rows that only such a norm reads, with the norm's place. `gated`: place of a gated activation and of its products.
    """

    rounded_norms: frozenset[int]
    taken_rows: dict[int, int]
    gated: dict[int, tuple[int, int]]


def fuse(
    ops: Sequence[Op],
    is_integer: Callable[[MatMul], bool],
    same_panels: Callable[[MatMul, MatMul], bool],
    sections: Sections | None = None,
) -> Fusion:
    """Find the ops that can be fused. `sections`: None for a single section of all ops."""
    sections = sections or Sections.one(len(ops))
    norms = {place for place, op in enumerate(ops) if _is_rounded_norm(ops, place, op, is_integer, sections)}
    taken = {
        place: place + 1
        for place, op in enumerate(ops[:-1])
        if isinstance(op, TakeOutputs)
        and place + 1 in norms
        and readers(ops, place, op.out) == [place + 1]
        and sections.keeps((place, place + 1), op.out)
    }
    gated = {}
    for place, op in enumerate(ops):
        if isinstance(op, GatedAct) and not op.threshold and place >= 2:
            gate, up = ops[place - 2], ops[place - 1]
            if isinstance(gate, MatMul) and isinstance(up, MatMul) and is_integer(gate) and same_panels(gate, up):
                plain = not (gate.bias or up.bias or gate.accumulate or up.accumulate) and gate.source == up.source
                own = (gate.out, up.out) == (op.gate, op.up)
                unread = readers(ops, place - 2, gate.out) == readers(ops, place - 1, up.out) == [place]
                within = all(sections.keeps((place - 2, place), name) for name in (gate.out, up.out))
                if plain and own and unread and within:
                    gated[place] = (place - 2, place - 1)
    return Fusion(frozenset(norms), taken, gated)


def _is_rounded_norm(
    ops: Sequence[Op], place: int, op: Op, is_integer: Callable[[MatMul], bool], sections: Sections
) -> bool:
    """Whether a norm of whole rows, not in place, is read only by integer products of its section."""
    if not isinstance(op, RMSNorm) or op.groups != 1 or op.source == op.out:
        return False
    places = readers(ops, place, op.out)
    if not places or not sections.keeps((place, places[-1]), op.out):
        return False
    found = [ops[reader] for reader in places]
    return all(isinstance(reader, MatMul) and is_integer(reader) for reader in found)


def readers(ops: Sequence[Op], place: int, name: str) -> list[int]:
    """Places of the ops that read a buffer after the op at `place` wrote it and before it is overwritten."""
    found = []
    for later in range(place + 1, len(ops)):
        op = ops[later]
        if name in op.reads:
            found.append(later)
        if name in op.writes and name not in op.reads:
            break
    return found
