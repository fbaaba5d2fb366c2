"""Makes bundles from a model's file: the panels of each part, packed as at load, and records of neurons.

In: an open GGUF file, its contents as bundles, compiled packing. Out: the bytes of any bundle. Bundles are independent
of each other, so several threads may make some at the same time. A bundle takes its own size in memory, plus one whole
layer's neurons if these are reordered.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.header import Orders, natural
from edgeinfer.backends.cpu.catalogue import PACK_PANELS
from edgeinfer.backends.cpu.layout.neurons import shared_scales
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS
from edgeinfer.backends.cpu.layout.recipes import Recipes
from edgeinfer.backends.cpu.layout.records import PACKING_JOB
from edgeinfer.backends.cpu.memory.packing import MatrixPacking, row_order
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.offload.bundle import Bundle, PanelRange, Run

SHARED_ROWS = 256
"""Rows of a down matrix whose scales are converted at a time: a few megabytes."""


class Assembly:
    """Makes the bundles of one model."""

    def __init__(
        self, file: GGUFFile, contents: Contents, library: KernelLibrary, orders: Orders | None = None
    ) -> None:
        """`orders`: the order of neurons in each sparse layer; None for the order of their numbers."""
        self._orders = natural(contents) if orders is None else orders
        self._whole: tuple[int, NDArray[np.uint8]] | None = None
        self._lock = Lock()
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
            made = self._neurons(bundle.run) if bundle.run.count else self._shared(bundle.run)
            data[: bundle.nbytes] = made.reshape(-1)
        return data

    def _neurons(self, run: Run) -> NDArray[np.uint8]:
        """The records of a run of positions in a layer; their neurons may lie anywhere in the model's file."""
        neurons = self._orders[run.layer][run.first : run.first + run.count]
        if np.array_equal(neurons, np.arange(run.first, run.first + run.count)):
            return self._cut(run)
        with self._lock:
            if self._whole is None or self._whole[0] != run.layer:
                n_neurons = self._contents.layers[run.layer].layout.n_neurons
                self._whole = None
                self._whole = run.layer, self._cut(Run(run.layer, 0, n_neurons))
            return self._whole[1][neurons]

    def _cut(self, run: Run) -> NDArray[np.uint8]:
        """The records of the neurons with these numbers."""
        layer = self._contents.layers[run.layer]
        down, stop = layer.down.weight, run.first + run.count
        down_rows = weights.raw_rows(self._file, down)
        form, up_form, up_rows = format_of(self._file.tensors[down.tensor].ggml_type), None, None
        if layer.up is not None:
            up = layer.up.weight
            up_form = format_of(self._file.tensors[up.tensor].ggml_type)
            up_rows = weights.raw_rows(self._file, up)[run.first : stop]
        if up_rows is None or not isinstance(up_form, BlockFormat):
            return layer.layout.cut(None, np.zeros((run.count, 0), np.uint8), form, down_rows, run.first)
        return layer.layout.cut(up_form, up_rows, form, down_rows, run.first)

    def _shared(self, run: Run) -> NDArray[np.uint8]:
        """The scales that the neurons of a layer share, followed by the minima: float16[n_blocks, rows] each."""
        layer = self._contents.layers[run.layer]
        down, layout = layer.down.weight, layer.layout
        form = format_of(self._file.tensors[down.tensor].ggml_type)
        assert isinstance(form, BlockFormat)
        raw = weights.raw_rows(self._file, down)
        n_kinds = layout.down.has_scales + layout.down.has_minimum
        found = np.zeros(layout.shared_bytes, np.uint8).view(np.float16).reshape(n_kinds, layout.n_blocks, -1)
        for first in range(0, len(raw), SHARED_ROWS):
            part = raw[first : first + SHARED_ROWS]
            for numbers, kind in zip(shared_scales(form, part, layout.n_blocks), found, strict=False):
                if numbers is not None:
                    kind[:, first : first + len(part)] = numbers[:, : len(part)]
        return found.reshape(-1).view(np.uint8)

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
