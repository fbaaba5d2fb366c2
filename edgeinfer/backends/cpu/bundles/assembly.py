"""Making bundles from a model's file: the panels of each part, packed as they are packed at load.

In: an open GGUF file, its contents as bundles, compiled packing. Out: the bytes of any bundle. Bundles are independent
of each other, so that several threads make some at the same time; memory is that of the bundle alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Bundle, Contents, Part
from edgeinfer.backends.cpu.catalogue import PACK_PANELS
from edgeinfer.backends.cpu.library import KernelLibrary
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.backends.cpu.packing import row_order
from edgeinfer.backends.cpu.panels import PANEL_ROWS
from edgeinfer.backends.cpu.recipes import Recipes
from edgeinfer.backends.cpu.records import PACKING_JOB
from edgeinfer.backends.cpu.repacking import MatrixPacking
from edgeinfer.backends.cpu.step import address
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import format_of


class Assembly:
    """Makes the bundles of one model."""

    def __init__(self, file: GGUFFile, contents: Contents, library: KernelLibrary) -> None:
        self._file, self._contents, self._library = file, contents, library  # which owns the code of functions
        self._recipes = Recipes()
        self._pack_panels = library.function(PACK_PANELS)
        for matrix in contents.matrices.values():  # made here, as threads share them
            weight = matrix.key[0]
            self._recipes.parts(format_of(file.tensors[weight.tensor].ggml_type), weight.columns)

    def bundle(self, bundle: Bundle) -> NDArray[np.uint8]:
        """The bytes of a bundle with its padding: uint8[padded_bytes]."""
        data: NDArray[np.uint8] = aligned((bundle.padded_bytes,), np.uint8)
        for part in bundle.parts:
            self._pack(part, data)
        return data

    def _pack(self, part: Part, data: NDArray[np.uint8]) -> None:
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
