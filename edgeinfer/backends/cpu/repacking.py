"""Repacking one matrix: from rows of a GGUF tensor, in any order, to panels.

In: a file, a weight and the order of its rows. Out: panels written, some at a time from any thread. Formats that say
where their bits lie are moved by the compiled packing; others are unpacked to codes by their NumPy truth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.panels import PANEL_ROWS, IntegerPanel, panel_for
from edgeinfer.backends.cpu.recipes import Recipes
from edgeinfer.backends.cpu.step import address
from edgeinfer.backends.cpu.unpacked import pack_codes
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.ops import Weight

UNPACKED_PANELS = 64
"""Panels that are unpacked at a time: a few megabytes."""

PackPanels = Callable[[int, int, int, int, int, int, int, int, int, int], None]


class MatrixPacking:
    """The packing of one matrix into `data`, uint8[n_panels, panel_bytes] of zeros; `order` as `packing.row_order`."""

    def __init__(
        self,
        file: GGUFFile,
        weight: Weight,
        order: NDArray[np.int64],
        data: NDArray[np.uint8],
        recipes: Recipes,
        pack_panels: PackPanels,
    ) -> None:
        info = file.tensors[weight.tensor]
        self._form = format_of(info.ggml_type)
        self._raw = file.raw(weight.tensor).reshape(info.shape[0], -1)
        rows = np.arange(weight.n_rows) if weight.unpair is None else weights.unpair_order(weight.unpair, weight.n_rows)
        self._rows = np.where(order < 0, -1, weight.start + rows[order])
        self._data, self._pack_panels = data, pack_panels
        self._parts = recipes.parts(self._form, weight.columns)
        self.source_bytes = weight.n_rows * self._raw.shape[1]

    def pack(self, first: int, stop: int) -> None:
        """Write panels `first` to `stop` - 1."""
        if not self._parts:
            for start in range(first, stop, UNPACKED_PANELS):
                self._unpack(start, min(stop, start + UNPACKED_PANELS))
            return
        row_bytes = self._raw.shape[1]
        zeros = np.zeros(row_bytes, np.uint8)  # all-zero blocks are zeros in every format
        chosen = self._rows[first * PANEL_ROWS : stop * PANEL_ROWS]
        rows = np.where(chosen < 0, address(zeros), address(self._raw) + chosen * row_bytes)
        out, panel_bytes = address(self._data) + first * self._data.shape[1], self._data.shape[1]
        for count, recipe in self._parts:
            stores, terms = address(recipe.stores), address(recipe.terms)
            sizes = (count, recipe.source_bytes, recipe.record_bytes)
            self._pack_panels(address(rows), stop - first, out, panel_bytes, *sizes, stores, len(recipe.stores), terms)
            rows = rows + count * recipe.source_bytes
            out += count * recipe.record_bytes

    def _unpack(self, first: int, stop: int) -> None:
        panel, chosen = panel_for(self._form), self._rows[first * PANEL_ROWS : stop * PANEL_ROWS]
        assert isinstance(panel, IntegerPanel)
        assert isinstance(self._form, BlockFormat)
        raw = self._raw[np.maximum(chosen, 0)]
        raw[chosen < 0] = 0
        pack_codes(panel, self._form.unpack(raw), self._data[first:stop])
