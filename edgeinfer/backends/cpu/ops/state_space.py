"""Mamba's state spaces, with their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.ops.gated_delta_net import TILES
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.state_space import StateSpace
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: StateSpace, target: KernelTarget) -> list[Kernel]:
    return [catalogue.PREPARE_STATE_SPACE, *_walking(op)]


def _walking(op: StateSpace) -> tuple[Kernel, Kernel]:
    """The kernels that process a pass, and that advance by kept tokens."""
    if op.by_column:
        return catalogue.STATE_SPACE_BY_COLUMN, catalogue.ADVANCE_STATE_SPACE_BY_COLUMN
    return catalogue.STATE_SPACE, catalogue.ADVANCE_STATE_SPACE


def _arguments(lowering: CpuLowering, op: StateSpace) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    buffers, states = lowering.buffers, lowering.states
    layer, kept = states.layers[op.state], states.kept[op.state]
    args = np.zeros(1, records.STATE_SPACE)
    args["mixed"], args["stride"] = mixed, stride = buffers.at(op.mixed)
    pair_bytes = 4 * op.groups * op.state_width
    keys, queries = ((mixed + 4 * op.inner + place * pair_bytes, stride) for place in range(2))
    if op.apart is not None:
        keys, queries = (buffers.at(name) for name in op.apart)
    (args["keys"], args["keys_stride"]), (args["queries"], args["queries_stride"]) = keys, queries
    args["steps"], args["steps_stride"] = buffers.at(op.steps)
    args["out"], args["out_stride"] = buffers.at(op.out)
    args["width"], args["rows"], args["n_steps"] = op.head_width, op.state_width, op.n_steps
    args["heads"], args["groups"] = op.heads, op.groups
    args["shift"], args["skip"] = (address(buffers.vector(each, padded(op.n_steps))) for each in (op.shift, op.skip))
    if op.by_column:
        args["rate"] = address(buffers.tiles(op.rate, op.inner, op.state_width))
    else:
        args["rate"] = address(buffers.vector(op.rate, padded(op.n_steps)))
    args["states"], args["state_bytes"] = address(layer), layer.strides[0]
    args["kept"], args["kept_stride"] = address(kept), kept.strides[0]
    args["states_step"], args["count"] = address(states.record), buffers.count(op.mixed)
    return args


def _calls(lowering: CpuLowering, op: StateSpace) -> list[Call]:
    args, state, steps = _arguments(lowering, op), frozenset({f"state {op.state}"}), frozenset({op.steps})
    return [
        Call(catalogue.PREPARE_STATE_SPACE, args, op.reads, steps, lowering.by_tokens(op.mixed)),
        Call(_walking(op)[0], args, state, state | {op.out}, TILES, op.reads),
    ]


def _advances(lowering: CpuLowering, op: StateSpace) -> list[Call]:
    state = frozenset({f"state {op.state}"})
    return [Call(_walking(op)[1], _arguments(lowering, op), state, state, TILES, NOTHING)]


def _why_not(op: Op) -> str | None:
    assert isinstance(op, StateSpace)
    if op.head_width % LANES:
        return f"it has heads of multiples of {LANES}, not of {op.head_width}"
    if op.state_width % LANES or op.state_width > records.MOST_DELTA_WIDTH:
        return f"it has states of multiples of {LANES} up to {records.MOST_DELTA_WIDTH} rows, not {op.state_width}"
    return None


OP = CpuOp(_kernels, _calls, frozenset({"apart", "by_column"}), _why_not, _advances)
