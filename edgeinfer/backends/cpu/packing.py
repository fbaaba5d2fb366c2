"""Packing a model's matrices into panels at load, several matrices at a time.

In: a GGUF file and weights. Out: PackedMatrix per weight (and head padding). Rows are unpacked to exact codes by the
quant format's NumPy truth and laid out by `panels`; a tied matrix is packed once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Progress
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.backends.cpu.panels import PANEL_ROWS, FloatPanel, Panel, pack_floats, pack_integers, panel_for
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.ops import Weight

CHUNK_ROWS = 1024
"""Rows unpacked at a time: a few megabytes, so that packing stays in cache."""


class HeadLayout(Protocol):
    """Rows of a projection cut into heads of `width` rows, each padded to `padded`."""

    @property
    def count(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def padded(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix in panels: data uint8[n_panels, panel_bytes]."""

    panel: Panel
    data: NDArray[np.uint8]


class PackedWeights:
    """The packed matrices of one model, for the instruction set `isa_name`."""

    def __init__(self, file: GGUFFile, isa_name: str) -> None:
        self.isa_name = isa_name
        self._file = file
        self._matrices: dict[tuple[Weight, int], PackedMatrix] = {}

    @property
    def resident_bytes(self) -> int:
        """Bytes of all panels."""
        return sum(matrix.data.nbytes for matrix in self._matrices.values())

    def pack(self, wanted: list[tuple[Weight, HeadLayout | None]], n_threads: int, progress: Progress) -> None:
        """Pack every wanted matrix, in `n_threads` threads."""
        todo = {(weight, heads.padded if heads else 0): heads for weight, heads in wanted}
        with ThreadPoolExecutor(n_threads) as pool:
            packing = {
                key: pool.submit(pack_matrix, self._file, key[0], heads)
                for key, heads in sorted(todo.items(), key=lambda item: -item[0][0].n_rows)
            }
            for done, (key, future) in enumerate(packing.items()):
                self._matrices[key] = future.result()
                progress("packing weights", done + 1, len(packing))

    def matrix(self, weight: Weight, heads: HeadLayout | None) -> PackedMatrix:
        """The packed form of a weight that `pack` was asked for."""
        return self._matrices[weight, heads.padded if heads else 0]


def row_order(weight: Weight, heads: HeadLayout | None) -> NDArray[np.int64]:
    """Which row of the weight goes where, -1 for rows of zeros: int64[a multiple of PANEL_ROWS]."""
    order = np.arange(weight.n_rows)
    if heads is not None:
        spread = np.full((heads.count, heads.padded), -1)
        spread[:, : heads.width] = order.reshape(heads.count, heads.width)
        order = spread.ravel()
    return np.concatenate([order, np.full(-len(order) % PANEL_ROWS, -1)])


def pack_matrix(file: GGUFFile, weight: Weight, heads: HeadLayout | None) -> PackedMatrix:
    """Unpack and lay out one matrix."""
    form = format_of(file.tensors[weight.tensor].ggml_type)
    panel = panel_for(form)
    rows, order = weights.raw_rows(file, weight), row_order(weight, heads)
    data = aligned((len(order) // PANEL_ROWS, panel.panel_bytes(weight.columns)), np.uint8)
    for start in range(0, len(order), CHUNK_ROWS):
        part = order[start : start + CHUNK_ROWS]
        raw = rows[np.maximum(part, 0)]
        raw[part < 0] = 0  # all-zero blocks are zeros in every format
        out = data[start // PANEL_ROWS : (start + len(part)) // PANEL_ROWS]
        if isinstance(panel, FloatPanel):
            pack_floats(panel, raw, weight.columns, out)
        elif isinstance(form, BlockFormat):
            pack_integers(panel, form.unpack(raw), out)
    return PackedMatrix(panel, data)
