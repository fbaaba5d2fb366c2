"""Mamba-2's state spaces, with their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.ops.gated_delta_net import TILES
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.state_space import StateSpace
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _arguments(lowering: CpuLowering, op: StateSpace) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    buffers, states = lowering.buffers, lowering.states
    layer, kept = states.layers[op.state], states.kept[op.state]
    args = np.zeros(1, records.STATE_SPACE)
    args["mixed"], args["stride"] = buffers.at(op.mixed)
    args["steps"], args["steps_stride"] = buffers.at(op.steps)
    args["out"], args["out_stride"] = buffers.at(op.out)
    args["mixed_width"], args["width"], args["rows"] = op.mixed_width, op.head_width, op.state_width
    args["heads"], args["groups"] = op.heads, op.groups
    args["rate"], args["shift"], args["skip"] = (
        address(buffers.vector(each, padded(op.heads))) for each in (op.rate, op.shift, op.skip)
    )
    args["states"], args["state_bytes"] = address(layer), layer.strides[0]
    args["kept"], args["kept_stride"] = address(kept), kept.strides[0]
    args["states_step"], args["count"] = address(states.record), buffers.count(op.mixed)
    return args


def _calls(lowering: CpuLowering, op: StateSpace) -> list[Call]:
    args, state, steps = _arguments(lowering, op), frozenset({f"state {op.state}"}), frozenset({op.steps})
    return [
        Call(catalogue.PREPARE_STATE_SPACE, args, op.reads, steps, lowering.by_tokens(op.mixed)),
        Call(catalogue.STATE_SPACE, args, state, state | {op.out}, TILES, op.reads),
    ]


def _advances(lowering: CpuLowering, op: StateSpace) -> list[Call]:
    state = frozenset({f"state {op.state}"})
    return [Call(catalogue.ADVANCE_STATE_SPACE, _arguments(lowering, op), state, state, TILES, NOTHING)]


def _why_not(op: Op) -> str | None:
    assert isinstance(op, StateSpace)
    if op.head_width % LANES:
        return f"it has heads of multiples of {LANES}, not of {op.head_width}"
    if op.state_width % LANES or op.state_width > records.MOST_DELTA_WIDTH:
        return f"it has states of multiples of {LANES} up to {records.MOST_DELTA_WIDTH} rows, not {op.state_width}"
    return None


OP = CpuOp(
    lambda *_: [catalogue.PREPARE_STATE_SPACE, catalogue.STATE_SPACE, catalogue.ADVANCE_STATE_SPACE],
    _calls,
    frozenset(),
    _why_not,
    _advances,
)
