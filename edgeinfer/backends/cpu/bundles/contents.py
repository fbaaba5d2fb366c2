"""What lies where in a bundle file: which panels of which matrices each bundle holds, in the order of a pass.

In: a ModelSpec and a tensor table. Out: `Contents`: sizes and places, known before anything is packed. A gate and its
up matrix lie together, so a bundle holds the same rows of both; small matrices share a bundle. Layers that
are stored as records (`record_layers`) have runs of these instead, plus what the records share.
Reads no weights and knows no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgeinfer.backends.cpu.layout.padding import PaddedHeads, heads_of
from edgeinfer.backends.cpu.layout.panels import BLOCK, PANEL_ROWS, UNIT_ROWS, Panel
from edgeinfer.backends.cpu.lowering.needs import KernelChoice
from edgeinfer.backends.cpu.record_layers import RecordLayer, RecordLayers, record_layers
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.offload.bundle import Bundle, Key, PanelRange, Run

PART_ALIGNMENT = 64
SMALLEST_BYTES, LARGEST_BYTES = 512 << 10, 4 << 20
"""A bundle holds a BUNDLES-th of the model within these bounds: small enough to stream, large enough to read fast."""
BUNDLES = 600
LARGEST_RUN_BYTES = 1 << 20
"""Limit for runs of records, which are checked run by run."""


@dataclass(frozen=True, slots=True)
class BundledMatrix:
    """A packed matrix: `n_panels` (even) of `panel_bytes` each. `heads`: how its rows are cut, None if they are not."""

    key: Key
    heads: PaddedHeads | None
    n_panels: int
    panel_bytes: int

    @property
    def nbytes(self) -> int:
        return self.n_panels * self.panel_bytes


_Piece = tuple[BundledMatrix, int, int]
"""Panels of a matrix: the matrix, the first panel, the number of panels."""


@dataclass(frozen=True, slots=True)
class Contents:
    """All bundles, and the matrices and layers of records that they hold."""

    matrices: Mapping[Key, BundledMatrix]
    bundles: tuple[Bundle, ...]
    records: RecordLayers | None = None

    @property
    def layers(self) -> Sequence[RecordLayer]:
        """The layers that are stored as records."""
        return () if self.records is None else self.records.layers

    @property
    def experts(self) -> list[Bundle]:
        """The bundles of experts."""
        return [bundle for bundle in self.bundles if bundle.expert is not None]

    @property
    def data_bytes(self) -> int:
        """Bytes of all bundles, including their padding."""
        return self.bundles[-1].offset + self.bundles[-1].padded_bytes if self.bundles else 0


def contents_of(spec: ModelSpec, tensors: Mapping[str, TensorInfo], *, by_records: bool = True) -> Contents:
    """The bundles of a model. Raises UnsupportedModel for a format that the cpu device does not support.

    `by_records` False: layers that could be stored as records are treated like all others.
    """
    choice = KernelChoice(spec, tensors)
    records = record_layers(choice.ops, tensors) if by_records else None
    layers = () if records is None else records.layers
    groups = list(_groups(spec, choice, layers))
    matrices = {matrix.key: matrix for group in groups for matrix in group.matrices}
    total = sum(group.nbytes for group in groups)
    wanted = min(max(total // BUNDLES, SMALLEST_BYTES), LARGEST_BYTES)
    bundles: list[Bundle] = []
    offset = 0
    for cut in _cut(groups, wanted):
        placed, n_bytes = _placed(cut.parts)
        if cut.run is not None:
            n_bytes = _run_bytes(layers[cut.run.layer], cut.run)
        bundle = Bundle(len(bundles), cut.stage, offset, n_bytes, placed, cut.expert, cut.stays, cut.run)
        bundles.append(bundle)
        offset += bundle.padded_bytes
    return Contents(matrices, tuple(bundles), records)


def _run_bytes(layer: RecordLayer, run: Run) -> int:
    """Bytes of the records of a run, or of what they share."""
    return run.count * layer.record_bytes if run.count else layer.shared_bytes


@dataclass(frozen=True, slots=True)
class _MatrixGroup:
    """Matrices of a stage that are read together, in the order of a pass."""

    stage: str
    matrices: tuple[BundledMatrix, ...]
    expert: int | None = None
    stays: bool = False
    layer: tuple[int, RecordLayer] | None = None

    @property
    def nbytes(self) -> int:
        if self.layer is not None:
            layer = self.layer[1]
            return layer.n_records * layer.record_bytes + layer.shared_bytes
        return sum(matrix.nbytes for matrix in self.matrices)

    @property
    def parts(self) -> list[_Piece]:
        """All of the matrices, as parts of a bundle."""
        return [(matrix, 0, matrix.n_panels) for matrix in self.matrices]


def _groups(spec: ModelSpec, choice: KernelChoice, layers: Sequence[RecordLayer]) -> Iterator[_MatrixGroup]:
    """Groups in order: one matrix, a gate with its up matrix, an expert's matrices, or a layer's records.

    What a pass reads twice (a router of AltUp) stays in memory, as bundles are read once and in order.
    """
    heads, gates = heads_of(spec), {layer.place for layer in layers}
    partners = {gate: up for gate, up in choice.fusion.gated.values() if gate not in gates}
    by_records = {place for layer in layers for place in layer.stored_places}
    of_place = {layer.stored_places[-1]: (number, layer) for number, layer in enumerate(layers)}
    stages = [stage.name for stage in spec.stages for _ in stage.ops]
    uses = Counter(op.weight for op in choice.ops if isinstance(op, MatMul))
    seen: set[Key] = set()
    for place, (stage, op) in enumerate(zip(stages, choice.ops, strict=True)):
        if isinstance(op, Experts):
            panels = choice.expert_panels(op).all
            for number, weights in enumerate(zip(*op.all_stacks, strict=True)):
                found = (_matrix(weight, None, panel) for weight, panel in zip(weights, panels, strict=True))
                all_are_used = op.active == op.count
                yield _MatrixGroup(stage, tuple(found), None if all_are_used else number, all_are_used)
        if place in of_place:
            yield _MatrixGroup(stage, (), layer=of_place[place])
        if not isinstance(op, MatMul) or place in partners.values() or place in by_records:
            continue
        ops = (op, choice.ops[partners[place]]) if place in partners else (op,)
        products = [each for each in ops if isinstance(each, MatMul)]
        group = tuple(_matrix(each.weight, heads.get(each.out), choice.panel(each)) for each in products)
        if not seen.issuperset(matrix.key for matrix in group):
            seen.update(matrix.key for matrix in group)
            yield _MatrixGroup(stage, group, stays=any(uses[each.weight] > 1 for each in products))


def _matrix(weight: Weight, heads: PaddedHeads | None, panel: Panel) -> BundledMatrix:
    n_rows = weight.n_rows if heads is None else -(-weight.n_rows // heads.width) * heads.padded
    n_panels = -(-n_rows // UNIT_ROWS) * (UNIT_ROWS // PANEL_ROWS)
    return BundledMatrix((weight, heads.padded if heads else 0), heads, n_panels, panel.panel_bytes(weight.columns))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Contents of a bundle that has no place yet."""

    stage: str
    parts: list[_Piece]
    expert: int | None = None
    stays: bool = False
    run: Run | None = None


def _cut(groups: Sequence[_MatrixGroup], wanted: int) -> Iterator[_Cut]:
    """Small matrices of a stage together, large ones in even pieces, each expert alone, records in runs."""
    parts: list[_Piece] = []
    open_stage, held = "", 0
    for group in groups:
        is_alone = group.stays or group.expert is not None or group.layer is not None
        if parts and (group.stage != open_stage or held + group.nbytes > wanted or is_alone):
            yield _Cut(open_stage, parts)
            parts, held = [], 0
        open_stage = group.stage
        if group.layer is not None:
            yield from _runs(group.stage, *group.layer, min(wanted, LARGEST_RUN_BYTES))
        elif is_alone:
            yield _Cut(group.stage, group.parts, group.expert, group.stays)
        elif group.nbytes <= wanted:
            parts = [*parts, *group.parts]
            held += group.nbytes
        else:
            yield from _pieces(group, wanted)
    if parts:
        yield _Cut(open_stage, parts)


def _runs(stage: str, number: int, layer: RecordLayer, wanted: int) -> Iterator[_Cut]:
    """What a layer's records share, if anything, then the records in runs of whole blocks."""
    if layer.shared_bytes:
        yield _Cut(stage, [], stays=True, run=Run(number))
    length = max(BLOCK, wanted // layer.record_bytes // BLOCK * BLOCK)
    for first in range(0, layer.n_records, length):
        yield _Cut(stage, [], run=Run(number, first, min(length, layer.n_records - first)))


def _pieces(group: _MatrixGroup, wanted: int) -> Iterator[_Cut]:
    """Cut a large group into even pieces, each with the same rows of all matrices."""
    n_units = group.matrices[0].n_panels // 2
    n_pieces = min(n_units, -(-group.nbytes // wanted))
    bounds = [2 * (n_units * number // n_pieces) for number in range(n_pieces + 1)]
    for first, stop in pairwise(bounds):
        yield _Cut(group.stage, [(matrix, first, stop - first) for matrix in group.matrices])


def _placed(parts: Sequence[_Piece]) -> tuple[tuple[PanelRange, ...], int]:
    """Place the parts one after another; returns them and the bytes they take."""
    found, end = [], 0
    for matrix, first, n_panels in parts:
        start = -(-end // PART_ALIGNMENT) * PART_ALIGNMENT
        found.append(PanelRange(matrix.key, first, n_panels, start))
        end = start + n_panels * matrix.panel_bytes
    return tuple(found), end
