"""Repacks one matrix: from rows of a GGUF tensor, in any order, to panels.

In: a file, a weight, the order of its rows, and memory for the panels. Out: jobs for the compiled packing, for any part
of the panels; formats whose bit layout is unknown are unpacked to codes with their NumPy definition instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, IntegerPanel, pack_codes, panel_for
from edgeinfer.backends.cpu.layout.recipes import Recipes
from edgeinfer.graph.operands import Weight
from edgeinfer.jit.memory import address
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of

UNPACKED_PANELS = 64
"""Panels that are unpacked at a time: a few megabytes."""

Job = tuple[int, ...]
"""The fields of a `kernels.weights.packing.JOB`."""


class MatrixPacking:
    """The packing of one matrix into `data`, uint8[n_panels, panel_bytes] of zeros; `order` as `packing.row_order`.

    Owns what its jobs point to, except for the recipes.
    """

    def __init__(
        self, file: GGUFFile, weight: Weight, order: NDArray[np.int64], data: NDArray[np.uint8], recipes: Recipes
    ) -> None:
        info = file.tensors[weight.tensor]
        self._form, self._data = format_of(info.ggml_type), data
        self._raw = weights.tensor_rows(file, weight)
        self._parts = recipes.parts(self._form, weight.columns)
        row_bytes = self._raw.shape[1]
        self.source_bytes = weight.n_rows * row_bytes
        self._zeros = np.zeros(row_bytes, np.uint8)  # all-zero blocks are zeros in every format
        own = weights.row_order(weight)
        taken = order if own is None else own[order]
        self._order = np.where(order < 0, -1, taken + weight.start)
        self._rows = np.where(order < 0, address(self._zeros), address(self._raw) + self._order * row_bytes)

    @property
    def n_units(self) -> int:
        """Pairs of panels."""
        return len(self._data) // 2

    @property
    def is_moved(self) -> bool:
        """Whether the format's bit layout is known, so that jobs can move its bits."""
        return bool(self._parts)

    def jobs(self, first: int, stop: int) -> list[Job]:
        """The jobs that write units `first` to `stop` - 1."""
        jobs: list[Job] = []
        skip, panel_bytes = 0, self._data.shape[1]
        rows, out = address(self._rows) + 16 * PANEL_ROWS * first, address(self._data) + 2 * first * panel_bytes
        for count, recipe in self._parts:
            sizes = (count, recipe.source_bytes, recipe.record_bytes)
            jobs.append((rows, skip, 2 * (stop - first), out, panel_bytes, *sizes, *recipe.places))
            skip += count * recipe.source_bytes
            out += count * recipe.record_bytes
        return jobs

    def unpack(self, first: int, stop: int) -> None:
        """Write units `first` to `stop` - 1 without jobs."""
        panel, form = panel_for(self._form), self._form
        assert isinstance(panel, IntegerPanel)
        assert isinstance(form, BlockFormat)
        for start in range(2 * first, 2 * stop, UNPACKED_PANELS):
            end = min(2 * stop, start + UNPACKED_PANELS)
            chosen = self._order[start * PANEL_ROWS : end * PANEL_ROWS]
            raw = self._raw[np.maximum(chosen, 0)]
            raw[chosen < 0] = 0
            pack_codes(panel, form.unpack(raw), self._data[start:end])
