"""A model on several devices: one `Lane` made of the host's sections and the fragments of other devices.

In: a placement, open devices, steps. Out: logits, and a `StepTimeline` of the last step. Each part numbers the KV
layers of its own attention from 0; the mapping to the model's layers is returned with it. Values go between devices
through the host's buffers. A fragment's inputs are copied first, so that the host can go on writing. Decides nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, FragmentLane, Limits
from edgeinfer.backends.capabilities import HostLane, LaneCapabilities
from edgeinfer.engine.shared_lane.partition import LaneTask, partition, turns_of
from edgeinfer.engine.shared_lane.timeline import DeviceSpan, StepTimeline
from edgeinfer.errors import DeviceUnavailable, EngineClosed
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.steps import Progress


@dataclass(frozen=True, slots=True)
class _Away:
    """A task on another device: its lane, and copies of its input rows that stay unchanged while it runs."""

    task: LaneTask
    lane: FragmentLane
    staged: Mapping[str, Floats]

    @property
    def stages(self) -> str:
        return _stages(self.task)


class SharedLane:
    """A whole model on a host and other devices. Owns the lanes, not the devices."""

    capabilities = LaneCapabilities()

    def __init__(
        self,
        spec: ModelSpec,
        placement: Placement,
        host: Device,
        others: Mapping[str, Device],
        file: GGUFFile,
        limits: Limits,
        progress: Progress,
    ) -> None:
        """Compile every device's part. Raises DeviceUnavailable for devices that run no parts, and as devices do."""
        sections = host.capabilities.sections
        if sections is None:
            raise DeviceUnavailable(f"the device {host.name} cannot run a model together with others; cpu can")
        self._logits, self._closed = spec.logits, False
        self.placement = placement
        self._tasks = partition(spec, placement, host.name)
        self._turns = turns_of(self._tasks, host.name)
        self._host_name = host.name
        part = host_part(spec, self._tasks, host.name)
        self._sections = {number: section for section, number in enumerate(part.tasks)}
        self._host: HostLane = sections.compile_sections(part.spec, part.exposed, file, limits, progress)
        self._away: dict[int, _Away] = {}
        self.timeline = StepTimeline((), 0.0, 0.0)
        """When each device worked in the last step."""
        try:
            for name, device in others.items():
                numbers = [number for number, task in enumerate(self._tasks) if task.device == name]
                tasks = [self._tasks[number] for number in numbers]
                found = _compiled(spec, tasks, device, file, limits, progress)
                self._away.update(zip(numbers, found, strict=True))
        except BaseException:
            self.close()
            raise

    @property
    def layout(self) -> str:
        """What page contents depend on: which device keeps each layer, in which order."""
        kept = [(task.device, layers) for task in self._tasks if (layers := sorted(_layers_of(task)))]
        return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]

    @property
    def resident_bytes(self) -> int:
        staged = sum(array.nbytes for away in self._away.values() for array in away.staged.values())
        return staged + sum(lane.resident_bytes for lane in self._lanes())

    def use(self, most_workers: int) -> None:
        """Let the host use at most this many workers from the next step on."""
        self._host.use(most_workers)

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], valid until the next run. Raises DeviceFailed."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        began = time.perf_counter()
        spans: list[DeviceSpan] = []
        waited_s = 0.0
        self._host.begin(step)
        for turn in self._turns:
            if turn.act == "run":
                started = time.perf_counter()
                self._host.run_section(self._sections[turn.task])
                spans.append(DeviceSpan(self._host_name, _stages(self._tasks[turn.task]), started, time.perf_counter()))
            elif turn.act == "submit":
                self._submit(self._away[turn.task], step)
            else:
                asked = time.perf_counter()
                outputs = self._away[turn.task].lane.wait()
                waited_s += time.perf_counter() - asked
                spans.append(self._delivered(self._away[turn.task], outputs))
        logits = self._host.read(self._logits)
        self.timeline = StepTimeline(tuple(spans), began, time.perf_counter(), waited_s)
        return logits

    def _submit(self, away: _Away, step: Step) -> None:
        inputs = {}
        for name, staged in away.staged.items():
            values = self._host.read(name)
            inputs[name] = staged[: len(values)]
            inputs[name][...] = values
        away.lane.submit(step, inputs)

    def _delivered(self, away: _Away, outputs: Mapping[str, Floats]) -> DeviceSpan:
        for delivery in away.task.deliveries:
            self._host.write(delivery.buffer, delivery.first, outputs[delivery.name], adds=delivery.adds)
        return DeviceSpan(away.task.device, away.stages, *away.lane.ran)

    @property
    def parts(self) -> tuple[FragmentLane, ...]:
        """The lanes of other devices, in order of their tasks."""
        return tuple(self._away[number].lane for number in sorted(self._away))

    def _lanes(self) -> list[HostLane | FragmentLane]:
        """All lanes that hold keys and values, in a fixed order."""
        return [self._host, *self.parts]

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots in all layers."""
        for lane in self._lanes():
            lane.copy_slots(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages on all devices: uint8[len(pages), page_bytes]."""
        return np.concatenate([lane.read_pages(pages) for lane in self._lanes()], axis=1)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Write page contents."""
        start, none = 0, np.zeros(1, np.int32)
        for lane in self._lanes():
            width = lane.read_pages(none).shape[1]
            lane.write_pages(pages, np.ascontiguousarray(contents[:, start : start + width]))
            start += width

    def close(self) -> None:
        """Close all parts. Safe to call twice."""
        self._closed = True
        for lane in self._lanes():
            lane.close()


def _layers_of(task: LaneTask) -> set[int]:
    return {op.layer for stage in task.stages for op in stage.ops if isinstance(op, StoreKV)}


def _stages(task: LaneTask) -> str:
    names = list(dict.fromkeys(stage.name for stage in task.stages))
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _compiled(
    spec: ModelSpec, tasks: Sequence[LaneTask], device: Device, file: GGUFFile, limits: Limits, progress: Progress
) -> list[_Away]:
    """The tasks of a device, each with its lane."""
    lanes = compiled_fragments(device, [fragment_of(spec, task) for task in tasks], file, limits, progress)
    most = max(limits.max_tokens, limits.max_outputs)
    return [
        _Away(task, lane, {name: np.zeros((most, spec.buffer(name).width), np.float32) for name in task.inputs})
        for task, lane in zip(tasks, lanes, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class HostPart:
    """The host's sections as stages of a spec, the buffers others take after each, and each section's task number."""

    spec: ModelSpec
    exposed: tuple[frozenset[str], ...]
    tasks: tuple[int, ...]


def host_part(spec: ModelSpec, tasks: Sequence[LaneTask], host: str) -> HostPart:
    """What the host compiles: all buffers, and its own ops."""
    numbers = tuple(number for number, task in enumerate(tasks) if task.device == host)
    layers = _layers(op for number in numbers for stage in tasks[number].stages for op in stage.ops)
    stages = tuple(
        Stage(f"section {number}", tuple(_renumbered(op, layers) for stage in tasks[number].stages for op in stage.ops))
        for number in numbers
    )
    own = replace(spec, stages=stages, kv=tuple(spec.kv[layer] for layer in layers))
    return HostPart(own, tuple(tasks[number].exposed for number in numbers), numbers)


def fragment_of(spec: ModelSpec, task: LaneTask) -> Fragment:
    """What the device of a task compiles."""
    ops = [op for stage in task.stages for op in stage.ops]
    layers = _layers(ops)
    stages = tuple(Stage(stage.name, tuple(_renumbered(op, layers) for op in stage.ops)) for stage in task.stages)
    names = {name for op in ops for name in (*op.reads, *op.writes)}
    buffers = [buffer for buffer in spec.buffers if buffer.name in names]
    rows = {buffer.name: buffer.rows for buffer in spec.buffers}
    buffers += [Buffer(name, width, rows[name.partition(" from ")[0]]) for name, width in task.widths]
    own = replace(spec, stages=stages, buffers=tuple(buffers), kv=tuple(spec.kv[layer] for layer in layers))
    return Fragment(own, task.inputs, tuple(delivery.name for delivery in task.deliveries), task.spare)


def _layers(ops: Iterable[Op]) -> list[int]:
    """Layers whose KV cache these ops write or read, increasing."""
    return sorted({op.layer for op in ops if isinstance(op, StoreKV | Attention)})


def _renumbered(op: Op, layers: list[int]) -> Op:
    return replace(op, layer=layers.index(op.layer)) if isinstance(op, StoreKV | Attention) else op


def compiled_fragments(
    device: Device, fragments: Sequence[Fragment], file: GGUFFile, limits: Limits, progress: Progress
) -> list[FragmentLane]:
    """A lane for each fragment; a device that divides its memory among parts gets all of them at once.

    Raises DeviceUnavailable for a device that does not run fragments, and what devices raise; leaves nothing open then.
    """
    single, together = device.capabilities.fragments, device.capabilities.parts
    if single is None:
        raise DeviceUnavailable(f"the device {device.name} cannot run part of a model; use it alone")
    if together is not None:
        return list(together.compile_fragments(fragments, file, limits, progress)) if fragments else []
    lanes: list[FragmentLane] = []
    try:
        for fragment in fragments:
            lanes.append(single.compile_fragment(fragment, file, limits, progress))
    except BaseException:
        for lane in lanes:
            lane.close()
        raise
    return lanes
