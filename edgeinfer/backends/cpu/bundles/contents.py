"""What lies where in a bundle file: which panels of which matrices each bundle holds, in the order of a pass.

In: a ModelSpec and a tensor table. Out: `Contents`: sizes and places, known before anything is packed. A gate and its
up matrix lie together, so a bundle has all that some neurons need of both; matrices that are small share a bundle.
Reads no weights and knows no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgeinfer.backends.cpu.layout import Heads, heads_of
from edgeinfer.backends.cpu.needs import Choice
from edgeinfer.backends.cpu.panels import PANEL_ROWS, UNIT_ROWS
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import MatMul, Weight

PAGE_BYTES = 4096
"""Bundles begin at multiples of it: what disks and direct reads want."""
PART_ALIGNMENT = 64
SMALLEST_BYTES, LARGEST_BYTES = 512 << 10, 4 << 20
"""A bundle has a BUNDLES-th of the model within these bounds: small enough to flow, large enough to be read fast."""
BUNDLES = 600

Key = tuple[Weight, int]
"""A weight and the padded width of its heads, 0 where it is not cut into heads."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as it is packed: `n_panels` (even) of `panel_bytes` each. `heads`: as its rows are cut, if they are."""

    key: Key
    heads: Heads | None
    n_panels: int
    panel_bytes: int

    @property
    def nbytes(self) -> int:
        return self.n_panels * self.panel_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Panels `first` to `first + n_panels - 1` of a matrix, `offset` bytes from the start of their bundle."""

    key: Key
    first: int
    n_panels: int
    offset: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is read at once: `nbytes` at `offset` (a multiple of PAGE_BYTES) in the data of a file."""

    number: int
    stage: str
    offset: int
    nbytes: int
    parts: tuple[Part, ...]

    @property
    def padded_bytes(self) -> int:
        """Bytes up to where the next bundle may begin."""
        return -(-self.nbytes // PAGE_BYTES) * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Contents:
    """All bundles, and the matrices that they hold."""

    matrices: Mapping[Key, Matrix]
    bundles: tuple[Bundle, ...]

    @property
    def data_bytes(self) -> int:
        """Bytes of all bundles with their padding."""
        return self.bundles[-1].offset + self.bundles[-1].padded_bytes if self.bundles else 0


def contents_of(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Contents:
    """The bundles of a model. Raises UnsupportedModel for a format that the cpu device does not have."""
    groups = list(_groups(spec, tensors))
    matrices = {matrix.key: matrix for _, group in groups for matrix in group}
    total = sum(matrix.nbytes for matrix in matrices.values())
    wanted = min(max(total // BUNDLES, SMALLEST_BYTES), LARGEST_BYTES)
    bundles: list[Bundle] = []
    for stage, parts in _cut(groups, wanted):
        offset = bundles[-1].offset + bundles[-1].padded_bytes if bundles else 0
        placed, end = _placed(parts, matrices)
        bundles.append(Bundle(len(bundles), stage, offset, end, placed))
    return Contents(matrices, tuple(bundles))


def _groups(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, tuple[Matrix, ...]]]:
    """Stage and matrices that are read together, in the order of a pass: one, or a gate and an up matrix."""
    choice, heads = Choice(spec, tensors), heads_of(spec)
    partners = dict(choice.fusion.gated.values())
    stages = [stage.name for stage in spec.stages for _ in stage.ops]
    seen: set[Key] = set()
    for place, (stage, op) in enumerate(zip(stages, choice.ops, strict=True)):
        if not isinstance(op, MatMul) or place in partners.values():
            continue
        ops = (op, choice.ops[partners[place]]) if place in partners else (op,)
        group = tuple(_matrix(each, heads.get(each.out), choice) for each in ops if isinstance(each, MatMul))
        if not seen.issuperset(matrix.key for matrix in group):
            seen.update(matrix.key for matrix in group)
            yield stage, group


def _matrix(op: MatMul, heads: Heads | None, choice: Choice) -> Matrix:
    weight = op.weight
    n_rows = weight.n_rows if heads is None else -(-weight.n_rows // heads.width) * heads.padded
    n_panels = -(-n_rows // UNIT_ROWS) * (UNIT_ROWS // PANEL_ROWS)
    key = (weight, heads.padded if heads else 0)
    return Matrix(key, heads, n_panels, choice.panel(op).panel_bytes(weight.columns))


Cut = tuple[str, list[tuple[Key, int, int]]]
"""A stage, and the (key, first panel, number of panels) of a bundle's parts."""


def _cut(groups: Sequence[tuple[str, tuple[Matrix, ...]]], wanted: int) -> Iterator[Cut]:
    """The parts of each bundle: whole matrices of a stage as long as they are small, even pieces of large ones."""
    parts: list[tuple[Key, int, int]] = []
    open_stage, held = "", 0
    for stage, group in groups:
        n_bytes = sum(matrix.nbytes for matrix in group)
        if parts and (stage != open_stage or held + n_bytes > wanted):
            yield open_stage, parts
            parts, held = [], 0
        open_stage = stage
        if n_bytes <= wanted:
            parts = [*parts, *((matrix.key, 0, matrix.n_panels) for matrix in group)]
            held += n_bytes
            continue
        n_units = group[0].n_panels // 2
        n_pieces = min(n_units, -(-n_bytes // wanted))
        bounds = [2 * (n_units * number // n_pieces) for number in range(n_pieces + 1)]
        for first, stop in pairwise(bounds):
            yield stage, [(matrix.key, first, stop - first) for matrix in group]
    if parts:
        yield open_stage, parts


def _placed(parts: Sequence[tuple[Key, int, int]], matrices: Mapping[Key, Matrix]) -> tuple[tuple[Part, ...], int]:
    """The parts one after the other, and the bytes they take."""
    found, end = [], 0
    for key, first, n_panels in parts:
        start = -(-end // PART_ALIGNMENT) * PART_ALIGNMENT
        found.append(Part(key, first, n_panels, start))
        end = start + n_panels * matrices[key].panel_bytes
    return tuple(found), end
