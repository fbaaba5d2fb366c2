"""Which ops of a model run as one, and which feed-forward layers may leave out inactive neurons.

In: the ops in order, the sections they run in, which products are of integers, a tensor table. Out: places of fused ops
(a norm with the rounding after it, a gate and an up product with their activation) and `SparseLayer`s; `lowering`
writes their calls. An op may be fused into another one of its section only if no other op and no other device reads the
result that it would have stored. A sparse layer has an activation with exact zeros, a first product that is computed
whole, and after it only one product with the neurons' columns, so results are bit-identical.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgeinfer.backends.cpu.layout.neurons import NeuronLayout, neuron_layout
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of


@dataclass(frozen=True, slots=True)
class Sections:
    """Where sections end: `stops`, and the buffers `exposed` after each, which other devices read."""

    stops: tuple[int, ...]
    exposed: tuple[frozenset[str], ...]

    @classmethod
    def one(cls, n_ops: int) -> Sections:
        """A single section of all ops, whose results are read where the last op left them."""
        return cls((n_ops,), (frozenset(),))

    def number(self, place: int) -> int:
        """The section of the op at a place."""
        return bisect_right(self.stops, place)

    def keeps(self, places: Sequence[int], name: str) -> bool:
        """Whether these ops run in one section after which no other device reads this buffer."""
        first = self.number(places[0])
        return self.number(places[-1]) == first and name not in self.exposed[first]


@dataclass(frozen=True, slots=True)
class Fusion:
    """Places of ops that are fused into others.

    `rounded_norms`: norms whose result only integer products read, so it is stored as int8 alone. `taken_rows`: output
    rows that only such a norm reads, with the norm's place. `gated`: place of a gated activation and of its products.
    """

    rounded_norms: frozenset[int]
    taken_rows: dict[int, int]
    gated: dict[int, tuple[int, int]]


def fuse(
    ops: Sequence[Op],
    is_integer: Callable[[MatMul], bool],
    same_panels: Callable[[MatMul, MatMul], bool],
    sections: Sections | None = None,
) -> Fusion:
    """Find the ops that can be fused. `sections`: None for a single section of all ops."""
    sections = sections or Sections.one(len(ops))
    norms = {place for place, op in enumerate(ops) if _is_rounded_norm(ops, place, op, is_integer, sections)}
    taken = {
        place: place + 1
        for place, op in enumerate(ops[:-1])
        if isinstance(op, TakeOutputs)
        and place + 1 in norms
        and readers(ops, place, op.out) == [place + 1]
        and sections.keeps((place, place + 1), op.out)
    }
    gated = {}
    for place, op in enumerate(ops):
        if isinstance(op, GatedAct) and not op.threshold and place >= 2:
            gate, up = ops[place - 2], ops[place - 1]
            if isinstance(gate, MatMul) and isinstance(up, MatMul) and is_integer(gate) and same_panels(gate, up):
                plain = not (gate.bias or up.bias or gate.accumulate or up.accumulate) and gate.source == up.source
                own = (gate.out, up.out) == (op.gate, op.up)
                unread = readers(ops, place - 2, gate.out) == readers(ops, place - 1, up.out) == [place]
                within = all(sections.keeps((place - 2, place), name) for name in (gate.out, up.out))
                if plain and own and unread and within:
                    gated[place] = (place - 2, place - 1)
    return Fusion(frozenset(norms), taken, gated)


def _is_rounded_norm(
    ops: Sequence[Op], place: int, op: Op, is_integer: Callable[[MatMul], bool], sections: Sections
) -> bool:
    """Whether a norm of whole rows, not in place, is read only by integer products of its section."""
    if not isinstance(op, RMSNorm) or op.groups != 1 or op.source == op.out:
        return False
    places = readers(ops, place, op.out)
    if not places or not sections.keeps((place, places[-1]), op.out):
        return False
    found = [ops[reader] for reader in places]
    return all(isinstance(reader, MatMul) and is_integer(reader) for reader in found)


def readers(ops: Sequence[Op], place: int, name: str) -> list[int]:
    """Places of the ops that read a buffer after the op at `place` wrote it and before it is overwritten."""
    found = []
    for later in range(place + 1, len(ops)):
        op = ops[later]
        if name in op.reads:
            found.append(later)
        if name in op.writes and name not in op.reads:
            break
    return found


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
    def up_place(self) -> int | None:
        return None if self.up is None else self.place + 1

    @property
    def act_place(self) -> int:
        return self.place + (1 if self.up is None else 2)

    @property
    def down_place(self) -> int:
        return self.act_place + 1

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
