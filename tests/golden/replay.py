"""Replaying a CPU device's own rounding in the reference device.

Both devices compute the same to about 1e-7, but a value that lies on the border between two int8 codes is rounded one
way here and the other way there, and the difference of 1/127 grows from layer to layer. With the CPU device's rounded
values in place of the reference's own, all that is left is float32's order of additions. In: steps. Out: a device that
records what products, the KV cache and attention read, and a `rounding` for ReferenceDevice that gives it back
in order.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.capabilities import DeviceCapabilities, LaneCapabilities
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import HIDDEN, Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.router import Router
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.steps import Progress, no_progress


class Replay:
    """What the ops of a CPU lane read, step after step."""

    def __init__(self) -> None:
        self._values: defaultdict[tuple[Op, str], deque[Floats]] = defaultdict(deque)

    def add(self, op: Op, name: str, values: Floats) -> None:
        """Record what an op read from a buffer."""
        self._values[op, name].append(values)

    def rounding(self, op: Op, name: str, source: Floats) -> Floats:
        """The recorded values, oldest first; they must be near what the reference itself would read."""
        values = self._values[op, name].popleft()
        assert np.abs(values - source).max() <= np.abs(source).max() / 100
        return values

    @property
    def is_used_up(self) -> bool:
        """Whether everything that was recorded has been replayed."""
        return not any(self._values.values())


class RecordingLane:
    """A CPU lane that records into a Replay."""

    def __init__(self, lane: CpuLane, replay: Replay, integer_tensors: set[str]) -> None:
        self._lane, self._replay, self._integer_tensors = lane, replay, integer_tensors
        lane.worker_pool_size = 1  # op by op, a worker pool would wait for its workers most of the time

    @property
    def resident_bytes(self) -> int:
        return self._lane.resident_bytes

    def run(self, step: Step) -> Floats:
        """Evaluate a step op by op."""
        return self._lane.watch(step, self._record)

    def _record(self, op: Op) -> None:
        if isinstance(op, MatMul) and op.weight.tensor in self._integer_tensors:
            self._replay.add(op, op.source, self._lane.rounded(op.source))
        if isinstance(op, Experts) and {each[0].tensor for each in op.stacks[:-1]} & self._integer_tensors:
            self._replay.add(op, op.source, self._lane.rounded(op.source))
        if isinstance(op, Experts) and op.down[0].tensor in self._integer_tensors:
            self._replay.add(op, HIDDEN, self._lane.hidden(op))
        if isinstance(op, Router):  # of scores that are equal but for rounding either may be chosen
            self._replay.add(op, op.scores, self._lane.value(op.scores))
        if isinstance(op, StoreKV):
            for name in (op.key, op.value):
                self._replay.add(op, name, self._lane.value(name))
        if isinstance(op, Attention):
            self._replay.add(op, op.query, self._lane.value(op.query))

    @property
    def capabilities(self) -> LaneCapabilities:
        return LaneCapabilities(self._lane.states)

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        self._lane.copy_slots(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        return self._lane.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        self._lane.write_pages(pages, contents)

    def close(self) -> None:
        self._lane.close()


class RecordingDevice:
    """A CPU device whose lanes record into a Replay."""

    name = "cpu"
    batch_invariant = True
    capabilities = DeviceCapabilities()

    def __init__(self, device: CpuDevice, replay: Replay) -> None:
        self._device, self._replay = device, replay

    def compile(
        self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> RecordingLane:
        tensors = file.tensors.items()
        integers = {name for name, info in tensors if isinstance(format_of(info.ggml_type), BlockFormat)}
        return RecordingLane(self._device.compile(spec, file, limits, progress), self._replay, integers)

    def close(self) -> None:
        self._device.close()
