"""A model split at its attention: matmuls for the accelerator, attention for both the accelerator and the host.

In: a ModelSpec. Out: `ModelParts`: fragments of matmuls before, between and after the attention of the layers, and the
attention of each layer twice: as a fragment of the accelerator, and as a section of the host. Knows neither devices nor
sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.engine.shared_lane.lane import HostPart, fragment_of, host_part
from edgeinfer.engine.shared_lane.partition import BufferTransfer, LaneTask, partition
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import Fragment, ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement

HOST, ACCELERATOR = "cpu", "accelerator"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What passes through host memory between parts: names of the rows that a layer's attention reads and writes."""

    reads: tuple[str, ...]
    makes: str


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of a model with L layers of attention.

    products    L + 1 fragments; the first takes tokens, the last gives logits, named `logits`
    attentions  L fragments
    host        L sections, with buffers only for the rows of attention
    exchanges   what the attention of each layer reads and writes
    widths      of all rows that pass from part to part
    """

    products: tuple[Fragment, ...]
    attentions: tuple[Fragment, ...]
    host: HostPart
    exchanges: tuple[Exchange, ...]
    widths: Mapping[str, int]
    logits: str

    @property
    def n_layers(self) -> int:
        return len(self.attentions)


def parts_of(spec: ModelSpec) -> ModelParts:
    """Split a model. Raises UnsupportedModel if its matmuls cannot be separated at attention."""
    tasks = partition(spec, _attention_apart(spec), HOST)
    products, attentions = tasks[::2], tasks[1::2]
    if not attentions or any(task.device != (HOST if number % 2 else ACCELERATOR) for number, task in enumerate(tasks)):
        raise UnsupportedModel(f"{spec.architecture} has no layers of attention with products before and after each")
    exchanges = tuple(_exchange(spec, task) for task in attentions)
    fragments = tuple(fragment_of(spec, task) for task in products)
    return ModelParts(
        products=fragments,
        attentions=tuple(
            fragment_of(spec, _abroad(task, found)) for task, found in zip(attentions, exchanges, strict=True)
        ),
        host=_of_attention(host_part(spec, tasks, HOST), exchanges),
        exchanges=exchanges,
        widths=_widths(spec, fragments, exchanges),
        logits=spec.logits,
    )


def _attention_apart(spec: ModelSpec) -> Placement:
    """Everything on the accelerator except attention."""
    stages = []
    for stage in spec.stages:
        products = [(RowRange(ACCELERATOR, 0, op.weight.n_rows),) for op in stage.ops if isinstance(op, MatMul)]
        attends = any(isinstance(op, Attention) for op in stage.ops)
        stages.append(StagePlacement(ACCELERATOR, tuple(products), HOST if attends else None))
    return Placement(tuple(stages))


def _exchange(spec: ModelSpec, task: LaneTask) -> Exchange:
    """What one layer's attention reads and writes."""
    ops = [op for stage in task.stages for op in stage.ops]
    stores = [op for op in ops if isinstance(op, StoreKV)]
    attends = [op for op in ops if isinstance(op, Attention)]
    if len(ops) != 2 or len(stores) != 1 or len(attends) != 1:
        raise UnsupportedModel(f"{spec.architecture} has attention of several layers at once, which cannot be shared")
    return Exchange((attends[0].query, stores[0].key, stores[0].value), attends[0].out)


def _abroad(task: LaneTask, exchange: Exchange) -> LaneTask:
    """The host's attention as a task of another device."""
    made = (BufferTransfer(exchange.makes, exchange.makes),)
    return replace(task, device=ACCELERATOR, inputs=exchange.reads, deliveries=made, exposed=frozenset())


def _of_attention(part: HostPart, exchanges: Sequence[Exchange]) -> HostPart:
    """The host's part, without buffers that attention does not use; it produces no logits."""
    names = {name for found in exchanges for name in (*found.reads, found.makes)}
    buffers = tuple(buffer for buffer in part.spec.buffers if buffer.name in names)
    return replace(part, spec=replace(part.spec, buffers=buffers, logits=exchanges[-1].makes))


def _widths(spec: ModelSpec, fragments: Sequence[Fragment], exchanges: Sequence[Exchange]) -> dict[str, int]:
    names = {name for found in exchanges for name in (*found.reads, found.makes)}
    names |= {name for fragment in fragments for name in (*fragment.inputs, *fragment.outputs)}
    return {buffer.name: buffer.width for buffer in spec.buffers if buffer.name in names - {spec.logits}}
