"""Causal convolutions of up to four taps, with their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice

MOST_TAPS = 4


def _kernels(choice: KernelChoice, place: int, op: CausalConv, target: KernelTarget) -> list[Kernel]:
    return [catalogue.causal_conv(op.activation), catalogue.ADVANCE_CONV]


def _arguments(lowering: CpuLowering, op: CausalConv) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    buffers, states = lowering.buffers, lowering.states
    layer, kept = states.layers[op.state], states.kept[op.state]
    args = np.zeros(1, records.CONVOLUTION)
    args["source"], args["stride"] = buffers.at(op.source)
    args["out"] = buffers.at(op.out)[0]
    args["before"] = 0 if op.before is None else buffers.at(op.before)[0]
    args["after"] = 0 if op.after is None else buffers.at(op.after)[0]
    args["n_vectors"], args["taps"] = buffers.arrays[op.out].shape[1] // LANES, op.taps
    args["weight"], args["row_bytes"] = address(lowering.taps(op.weight, op.width, op.taps)), layer.strides[1]
    args["states"], args["state_bytes"] = address(layer), layer.strides[0]
    args["kept"], args["states_step"] = address(kept), address(states.record)
    return args


def _calls(lowering: CpuLowering, op: CausalConv) -> list[Call]:
    args, state = _arguments(lowering, op), f"state {op.state}"
    share = lowering.by_columns(op.out)
    return [Call(catalogue.causal_conv(op.activation), args, op.reads | {state}, op.writes | {state}, share)]


def _advances(lowering: CpuLowering, op: CausalConv) -> list[Call]:
    names = frozenset({f"state {op.state}"})
    return [Call(catalogue.ADVANCE_CONV, _arguments(lowering, op), names, names, lowering.by_columns(op.out))]


def _why_not(op: Op) -> str | None:
    assert isinstance(op, CausalConv)
    if op.taps > MOST_TAPS:
        return f"it has convolutions of up to {MOST_TAPS} taps, not {op.taps}"
    return None


OP = CpuOp(_kernels, _calls, frozenset({"before", "after", "activation"}), _why_not, _advances)
