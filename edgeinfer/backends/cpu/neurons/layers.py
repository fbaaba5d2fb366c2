"""Which feed-forward layers of a model may leave out inactive neurons.

In: the ops in order, a tensor table. Out: `SparseLayer`s, whose weights are stored by neurons. Such a layer has an
activation with exact zeros, a first product that is computed whole, and after it only one product with the neurons'
columns, so results are bit-identical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeinfer.backends.cpu.lowering.fusion import readers
from edgeinfer.backends.cpu.neurons.kernels.layout import NeuronLayout, neuron_layout
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of

WITH_ZEROS: tuple[Activation, ...] = ("relu", "relu2")


@dataclass(frozen=True, slots=True)
class SparseLayer:
    """The consecutive ops of a layer, with the place of the first among all ops.

    `gate`: the product before the activation; `up`: the product that multiplies it, None in a layer without a gate.
    """

    place: int
    gate: MatMul
    up: MatMul | None
    act: GatedAct | Act
    down: MatMul
    layout: NeuronLayout

    @property
    def act_place(self) -> int:
        return self.place + (1 if self.up is None else 2)

    @property
    def down_place(self) -> int:
        return self.act_place + 1

    @property
    def stored_places(self) -> tuple[int, ...]:
        """The products whose weights are stored by neurons, in order."""
        return (self.down_place,) if self.up is None else (self.place + 1, self.down_place)

    @property
    def n_records(self) -> int:
        return self.layout.n_neurons

    @property
    def record_bytes(self) -> int:
        return self.layout.record_bytes

    @property
    def shared_bytes(self) -> int:
        return self.layout.shared_bytes

    @property
    def line(self) -> str:
        """What records are made from, regardless of why a neuron counts as inactive."""
        return f"{self.place} {self.weights!r} {self.layout!r}"

    @property
    def activated(self) -> str:
        """The buffer of activated values; a neuron whose values are zero is inactive."""
        return self.act.gate if isinstance(self.act, GatedAct) else self.act.out

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The weights that are stored by neurons."""
        return (self.down.weight,) if self.up is None else (self.up.weight, self.down.weight)


def sparse_layers(ops: Sequence[Op], tensors: Mapping[str, TensorInfo]) -> list[SparseLayer]:
    """The layers of a model that can be read by neurons. Raises UnsupportedModel for an unknown format."""
    uses = Counter(op.weight for op in ops if isinstance(op, MatMul))
    found = []
    for place in range(len(ops)):
        layer = _gated_layer(ops, place, tensors) or _plain_layer(ops, place, tensors)
        if layer is not None and all(uses[weight] == 1 and weight.order is None for weight in layer.weights):
            found.append(layer)
    return found


def _gated_layer(ops: Sequence[Op], place: int, tensors: Mapping[str, TensorInfo]) -> SparseLayer | None:
    """The layer whose gate is at a place."""
    if place + 4 > len(ops):
        return None
    gate, up, act, down = ops[place : place + 4]
    if not (isinstance(gate, MatMul) and isinstance(up, MatMul) and isinstance(act, GatedAct)):
        return None
    if not isinstance(down, MatMul) or not _has_zeros(act) or gate.source != up.source:
        return None
    joined = (gate.out, up.out, act.out) == (act.gate, act.up, down.source)
    if not joined or gate.accumulate or up.accumulate or gate.out in (up.out, act.out, gate.source):
        return None
    own = readers(ops, place, gate.out) == readers(ops, place + 1, up.out) == [place + 2]
    layout = _layout(up, down, tensors)
    if layout is None or not own or readers(ops, place + 2, act.out) != [place + 3]:
        return None
    return SparseLayer(place, gate, up, act, down, layout)


def _plain_layer(ops: Sequence[Op], place: int, tensors: Mapping[str, TensorInfo]) -> SparseLayer | None:
    """The layer without a gate whose first product is at a place."""
    if place + 3 > len(ops):
        return None
    first, act, down = ops[place : place + 3]
    if not (isinstance(first, MatMul) and isinstance(act, Act) and isinstance(down, MatMul)):
        return None
    if not _has_zeros(act) or (first.out, act.out) != (act.source, down.source):
        return None
    layout = _layout(None, down, tensors)
    if layout is None or readers(ops, place + 1, act.out) != [place + 2]:
        return None
    return SparseLayer(place, first, None, act, down, layout)


def _has_zeros(act: GatedAct | Act) -> bool:
    """Whether activated values are exactly zero for inactive neurons."""
    return act.activation in WITH_ZEROS or act.threshold > 0


def _layout(up: MatMul | None, down: MatMul, tensors: Mapping[str, TensorInfo]) -> NeuronLayout | None:
    formats = [None if op is None else format_of(tensors[op.weight.tensor].ggml_type) for op in (up, down)]
    if formats[1] is None or (up is not None and up.weight.columns != down.weight.n_rows):
        return None
    return neuron_layout(formats[0], formats[1], down.weight.n_rows, down.weight.columns)
