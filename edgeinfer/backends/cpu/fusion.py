"""Which ops of a model run as one: a norm with the rounding after it, a gate and an up product with their activation.

In: the ops in order and which products are of integers. Out: places of what is taken in where; `lowering` writes calls.
An op may be taken into another only if nothing else reads what it would have stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeinfer.ops import (
    Add,
    Attention,
    Embed,
    GatedAct,
    MatMul,
    Op,
    RMSNorm,
    Rope,
    SoftCap,
    StoreKV,
    TakeOutputs,
)


@dataclass(frozen=True, slots=True)
class Fusion:
    """Places of ops that others take in.

    `rounded_norms`: norms whose result only integer products read: it is stored as int8 alone. `taken_rows`: output
    rows that only such a norm reads, with the norm's place. `gated`: place of a gated activation and of its products.
    """

    rounded_norms: frozenset[int]
    taken_rows: dict[int, int]
    gated: dict[int, tuple[int, int]]


def fuse(
    ops: Sequence[Op], is_integer: Callable[[MatMul], bool], same_panels: Callable[[MatMul, MatMul], bool]
) -> Fusion:
    """Find what can run as one."""
    norms = {place for place, op in enumerate(ops) if _is_rounded_norm(ops, place, op, is_integer)}
    taken = {
        place: place + 1
        for place, op in enumerate(ops[:-1])
        if isinstance(op, TakeOutputs) and place + 1 in norms and readers(ops, place, op.out) == [place + 1]
    }
    gated = {}
    for place, op in enumerate(ops):
        if isinstance(op, GatedAct) and place >= 2:
            gate, up = ops[place - 2], ops[place - 1]
            if isinstance(gate, MatMul) and isinstance(up, MatMul) and is_integer(gate) and same_panels(gate, up):
                plain = not (gate.bias or up.bias or gate.accumulate or up.accumulate) and gate.source == up.source
                own = (gate.out, up.out) == (op.gate, op.up)
                unread = readers(ops, place - 2, gate.out) == readers(ops, place - 1, up.out) == [place]
                if plain and own and unread:
                    gated[place] = (place - 2, place - 1)
    return Fusion(frozenset(norms), taken, gated)


def _is_rounded_norm(ops: Sequence[Op], place: int, op: Op, is_integer: Callable[[MatMul], bool]) -> bool:
    """Whether a norm of whole rows, not in place, is read by integer products alone."""
    if not isinstance(op, RMSNorm) or op.groups != 1 or op.source == op.out:
        return False
    found = [ops[reader] for reader in readers(ops, place, op.out)]
    return bool(found) and all(isinstance(reader, MatMul) and is_integer(reader) for reader in found)


def readers(ops: Sequence[Op], place: int, name: str) -> list[int]:
    """Places of the ops that read what the op at `place` leaves in a buffer, until it is overwritten."""
    found = []
    for later in range(place + 1, len(ops)):
        op = ops[later]
        if name in reads(op):
            found.append(later)
        if name in writes(op) and name not in reads(op):
            break
    return found


def reads(op: Op) -> set[str]:
    """Buffers whose contents an op depends on."""
    match op:
        case Embed():
            return set()
        case RMSNorm() | TakeOutputs():
            return {op.source}
        case MatMul():
            return {op.source, op.out} if op.accumulate else {op.source}
        case Rope() | SoftCap():
            return {op.value}
        case StoreKV():
            return {op.key, op.value}
        case Attention():
            return {op.query}
        case GatedAct():
            return {op.gate, op.up}
        case Add():
            return {op.source, op.out}


def writes(op: Op) -> set[str]:
    """Buffers that an op changes."""
    match op:
        case Rope() | SoftCap():
            return {op.value}
        case StoreKV():
            return set()
        case _:
            return {op.out}
