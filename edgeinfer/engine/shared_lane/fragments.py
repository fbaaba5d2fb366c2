"""Turns tasks into what devices compile: sections for the host, and a fragment with its lane for each other task.

In: a ModelSpec and its tasks, an open device. Out: a spec whose stages are the host's sections, fragments, lanes. Each
part numbers the KV layers of its own attention from 0; the mapping to the model's layers is returned with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edgeinfer.backends.base import Device, FragmentLane, Limits
from edgeinfer.engine.shared_lane.partition import LaneTask
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


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
