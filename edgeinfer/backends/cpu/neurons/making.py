"""Makes records of neurons from a model's file.

In: an open GGUF file, sparse layers, an order of their neurons. Out: the bytes of any run of records, and of the scales
that a layer's records share. Several threads may make some at the same time; one whole layer's neurons are in memory if
these are reordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cpu.neurons.kernels.layout import shared_scales
from edgeinfer.backends.cpu.neurons.layers import SparseLayer
from edgeinfer.backends.cpu.neurons.order import Orders
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.offload.bundle import Run

SHARED_ROWS = 256
"""Rows of a down matrix whose scales are converted at a time: a few megabytes."""


class NeuronMaker:
    """Makes the records of one model."""

    def __init__(self, file: GGUFFile, layers: Sequence[SparseLayer], orders: Orders) -> None:
        self._file, self._layers, self._orders = file, layers, orders
        self._whole: tuple[int, NDArray[np.uint8]] | None = None
        self._lock = Lock()

    def run(self, run: Run) -> NDArray[np.uint8]:
        """The bytes of a run of records, or of the scales that all of a layer share."""
        return self._neurons(run) if run.count else self._shared(run)

    def _neurons(self, run: Run) -> NDArray[np.uint8]:
        """The records of a run of positions in a layer; their neurons may lie anywhere in the model's file."""
        neurons = self._orders[run.layer][run.first : run.first + run.count]
        if np.array_equal(neurons, np.arange(run.first, run.first + run.count)):
            return self._cut(run)
        with self._lock:
            if self._whole is None or self._whole[0] != run.layer:
                n_neurons = self._layers[run.layer].layout.n_neurons
                self._whole = None
                self._whole = run.layer, self._cut(Run(run.layer, 0, n_neurons))
            return self._whole[1][neurons]

    def _cut(self, run: Run) -> NDArray[np.uint8]:
        """The records of the neurons with these numbers."""
        layer = self._layers[run.layer]
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
        layer = self._layers[run.layer]
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
