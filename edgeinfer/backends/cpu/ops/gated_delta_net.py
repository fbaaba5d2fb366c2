"""The gated delta rule, with its states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.gated_delta_net import GatedDeltaNet
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice

TILES = "by tiles of states"


def _kernels(choice: KernelChoice, place: int, op: GatedDeltaNet, target: KernelTarget) -> list[Kernel]:
    return [catalogue.PREPARE_DELTA, *_walking(op)]


def _walking(op: GatedDeltaNet) -> tuple[Kernel, Kernel]:
    """The kernels that process a pass, and that advance by kept tokens."""
    if op.by_column:
        return catalogue.DELTA_BY_COLUMN, catalogue.ADVANCE_DELTA_BY_COLUMN
    return catalogue.DELTA, catalogue.ADVANCE_DELTA


def _arguments(lowering: CpuLowering, op: GatedDeltaNet) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    buffers, states = lowering.buffers, lowering.states
    layer, kept = states.layers[op.state], states.kept[op.state]
    args = np.zeros(1, records.DELTA)
    args["mixed"], args["stride"] = buffers.at(op.mixed)
    args["decay"], args["decay_stride"] = buffers.at(op.decay)
    args["strength"], args["strength_stride"] = buffers.at(op.strength)
    args["out"], args["out_stride"] = buffers.at(op.out)
    args["mixed_width"], args["n_decays"] = op.mixed_width, op.n_decays
    args["width"], args["rows"] = op.head_width, op.head_width
    args["key_heads"], args["heads"], args["grouped"] = op.key_heads, op.value_heads, op.grouped
    args["rate"] = address(buffers.repeated(op.rate, op.n_decays // op.value_heads, padded(op.n_decays)))
    args["shift"] = address(buffers.vector(op.shift, padded(op.n_decays)))
    args["states"], args["state_bytes"] = address(layer), layer.strides[0]
    args["kept"], args["kept_stride"] = address(kept), kept.strides[0]
    args["states_step"], args["count"] = address(states.record), buffers.count(op.mixed)
    args["scale"] = op.head_width**-0.5
    return args


def _calls(lowering: CpuLowering, op: GatedDeltaNet) -> list[Call]:
    args, state, rows = _arguments(lowering, op), frozenset({f"state {op.state}"}), op.reads
    return [
        Call(catalogue.PREPARE_DELTA, args, rows, rows, lowering.by_tokens(op.mixed)),
        Call(_walking(op)[0], args, state, state | {op.out}, TILES, rows),
    ]


def _advances(lowering: CpuLowering, op: GatedDeltaNet) -> list[Call]:
    state = frozenset({f"state {op.state}"})
    return [Call(_walking(op)[1], _arguments(lowering, op), state, state, TILES, NOTHING)]


def _why_not(op: Op) -> str | None:
    assert isinstance(op, GatedDeltaNet)
    if op.head_width % LANES or op.head_width > records.MOST_DELTA_WIDTH:
        return f"it has heads of multiples of {LANES} up to {records.MOST_DELTA_WIDTH}, not of {op.head_width}"
    return None


OP = CpuOp(
    _kernels,
    _calls,
    frozenset({"grouped", "by_column"}),
    _why_not,
    _advances,
)
