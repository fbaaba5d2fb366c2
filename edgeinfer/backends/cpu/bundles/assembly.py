"""Makes bundles from a model's file: the panels of each part, packed as at load, and records.

In: an open GGUF file, its contents as bundles, compiled packing. Out: the bytes of any bundle. Bundles are independent
of each other, so several threads may make some at the same time. A bundle takes its own size in memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.catalogue import PACK_PANELS
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS
from edgeinfer.backends.cpu.layout.recipes import Recipes
from edgeinfer.backends.cpu.layout.records import PACKING_JOB
from edgeinfer.backends.cpu.memory.packing import MatrixPacking, row_order
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import format_of
from edgeinfer.offload.bundle import Bundle, PanelRange


class Assembly:
    """Makes the bundles of one model."""

    def __init__(self, file: GGUFFile, contents: Contents, library: KernelLibrary, table: NDArray[np.uint8]) -> None:
        """`table`: of records, of no bytes if there are none."""
        self._records = None if contents.records is None else contents.records.maker(file, table)
        self._file, self._contents, self._library = file, contents, library  # the library owns the code of functions
        self._recipes = Recipes()
        self._pack_panels = library.function(PACK_PANELS)
        for matrix in contents.matrices.values():  # made in advance, as threads share them
            weight = matrix.key[0]
            self._recipes.parts(format_of(file.tensors[weight.tensor].ggml_type), weight.columns)

    def bundle(self, bundle: Bundle) -> NDArray[np.uint8]:
        """The bytes of a bundle, including its padding: uint8[padded_bytes]."""
        data: NDArray[np.uint8] = aligned((bundle.padded_bytes,), np.uint8)
        for part in bundle.parts:
            self._pack(part, data)
        if bundle.run is not None:
            assert self._records is not None
            data[: bundle.nbytes] = self._records.run(bundle.run).reshape(-1)
        return data

    def _pack(self, part: PanelRange, data: NDArray[np.uint8]) -> None:
        matrix = self._contents.matrices[part.key]
        end = part.offset + part.n_panels * matrix.panel_bytes
        panels = data[part.offset : end].reshape(part.n_panels, matrix.panel_bytes)
        order = row_order(part.key[0], matrix.heads)[part.first * PANEL_ROWS :][: part.n_panels * PANEL_ROWS]
        packing = MatrixPacking(self._file, part.key[0], order, panels, self._recipes)
        if packing.is_moved:
            jobs = np.array(packing.jobs(0, packing.n_units), PACKING_JOB)
            self._pack_panels(address(jobs), len(jobs))
        else:
            packing.unpack(0, packing.n_units)
