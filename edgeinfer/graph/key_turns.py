"""Which columns of a layer's cached keys turn when their tokens move to other positions, and by which rotary table.

A rotary embedding is a rotation: R(p + d) = R(d) R(p). So a cached key of a token at position p, times R(d), is the key
of the same token at p + d, if nothing but the rotation depends on the position. Scores that are changed by distances
alone (ALiBi, T5's biases) leave keys as they are. In: a model's ops. Out: a record for each layer that stores keys, and
the meaning of turning in NumPy. Knows no frequencies; `models.rope` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.join_heads import JoinHeads
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope, rotate
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import Floats


@dataclass(frozen=True, slots=True)
class KeyTurn:
    """The columns of each key head that turn: `table.rotary_width` of them from `first` on; none without a table."""

    table: RopeTable | None = None
    first: int = 0


UNTURNED = KeyTurn()
Rotated = dict[str, KeyTurn | str]
"""Buffers with rotated heads; those that an op has changed since, with its name."""


def key_turns(spec: ModelSpec) -> tuple[KeyTurn, ...]:
    """How the keys of each layer of `spec.kv` turn. Raises UnsupportedModel, with the reason, if turning is not all."""
    if spec.states:
        raise _refusal(spec, "its states sum up the whole text before them")
    if not spec.is_causal:
        raise _refusal(spec, "its tokens attend to later ones")
    found, rotated = [UNTURNED] * len(spec.kv), Rotated()
    for op in spec.ops():
        if isinstance(op, StoreKV):
            found[op.layer] = _stored(spec, op, rotated)
        else:
            _follow(spec, op, rotated)
    return tuple(found)


def _stored(spec: ModelSpec, op: StoreKV, rotated: Rotated) -> KeyTurn:
    """How the keys turn that an op stores."""
    turn = rotated.get(op.key, UNTURNED)
    if isinstance(turn, str):
        raise _refusal(spec, f"its keys are changed after they are rotated ({turn})")
    if op.value in rotated:
        raise _refusal(spec, "its values are rotated too")
    if turn.table is not None and turn.table.growth:
        raise _refusal(spec, "its keys grow with their position")
    return turn


def _follow(spec: ModelSpec, op: Op, rotated: Rotated) -> None:
    """Note what an op does to rotated heads."""
    if isinstance(op, PositionEmbed):
        raise _refusal(spec, f"its positions are learned ({op.kind})")
    if isinstance(op, Rope):
        if op.sections is not None:
            raise _refusal(spec, "it was opened for rows of numbers, with three positions a token")
        rotated[op.value] = op.kind if op.value in rotated else KeyTurn(op.table)
        return
    is_rotated = not rotated.keys().isdisjoint(op.reads)
    if isinstance(op, JoinHeads) and is_rotated:
        rotated[op.out] = _joined(op, rotated)
    elif isinstance(op, RMSNorm) and op.weight is None and is_rotated:  # each head keeps its direction
        rotated[op.out] = rotated[op.source]
    elif is_rotated and not isinstance(op, MatMul | Attention):
        rotated.update(dict.fromkeys(op.writes, op.kind))
    else:
        for name in op.writes & rotated.keys():
            if name in op.reads:
                rotated[name] = op.kind
            else:
                del rotated[name]


def _joined(op: JoinHeads, rotated: Rotated) -> KeyTurn | str:
    """How heads turn of which one part is rotated."""
    parts = [(rotated[name], start) for name, start in ((op.first, 0), (op.second, op.first_width)) if name in rotated]
    turn, start = parts[0]
    return op.kind if isinstance(turn, str) or len(parts) > 1 else replace(turn, first=turn.first + start)


def turned_keys(keys: Floats, turn: KeyTurn, cosines: Floats, sines: Floats) -> Floats:
    """Key heads float32[n, G, K] turned; cosines and sines of the distance, float32[rotary_width / 2] each."""
    if turn.table is None:
        return keys
    columns, n = slice(turn.first, turn.first + turn.table.rotary_width), len(keys)
    rotations = (np.broadcast_to(each, (n, len(each))) for each in (cosines, sines))
    found, part = keys.copy(), keys[..., columns]
    found[..., columns] = rotate(part.reshape(n, -1), keys.shape[1], *rotations).reshape(part.shape)
    return found


def _refusal(spec: ModelSpec, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"cached keys of {spec.architecture} cannot be moved to other positions: {reason}")
