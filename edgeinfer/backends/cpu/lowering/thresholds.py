"""Calls of activations that are cut at a threshold, and counts of what the cut keeps.

In: ops with a threshold, buffers. Out: calls; counts of activations that grow with every pass. Knows nothing of what is
left out because of zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.cpu.memory.buffers import CpuBuffers
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address, aligned


class ThresholdLowering:
    """Makes the calls of one model's thresholded activations; without any it has none."""

    def __init__(self, ops: Iterable[Op], buffers: CpuBuffers, n_workers: int) -> None:
        self._buffers = buffers
        self._cut = [op for op in ops if isinstance(op, GatedAct | Act) and op.threshold]
        self._kept = aligned((n_workers, records.COUNT_LINE // 8), np.int64)
        self._n_activations = 0

    @property
    def activations(self) -> tuple[int, int]:
        """Number of activations in all passes so far, and how many of them were kept."""
        return self._n_activations, int(self._kept[:, 0].sum())

    def begin(self) -> None:
        """Count the activations of a pass with the present step."""
        self._n_activations += sum(op.width * self._buffers.n_rows(op.out) for op in self._cut)

    def call(self, op: GatedAct | Act, share: str) -> Call:
        """out = cut(activation), multiplied by up if there is a gate."""
        if isinstance(op, GatedAct):
            return self._call(catalogue.CUT_GATED[op.activation], op, (op.gate, op.up, op.out), share)
        return self.activate(op, op.source, op.out, share)

    def activate(self, op: GatedAct | Act, source: str, out: str, share: str) -> Call:
        """The activation of a buffer alone."""
        return self._call(catalogue.CUT_ACT[op.activation], op, (source, source, out), share)

    def _call(self, kernel: Kernel, op: GatedAct | Act, names: tuple[str, str, str], share: str) -> Call:
        source, other, out = names
        args, buffers = np.zeros(1, records.CUT_COLUMNS), self._buffers.arrays
        args["source"], args["other"] = address(buffers[source]), address(buffers[other])
        args["out"], args["stride"] = self._buffers.at(out)
        args["n_vectors"] = buffers[out].shape[1] // LANES
        args["count"], args["kept"] = self._buffers.count(out), address(self._kept)
        args["threshold"] = op.threshold
        return Call(kernel, args, frozenset(names), frozenset({out}), share)
