"""Sparse layers as the rest of the device sees them: layers that are stored as records, one for each neuron.

In: the ops of a model, a tensor table. Out: its `RecordLayers`, None if it has no activations with exact zeros or a
format whose neurons cannot be told apart. This is the only module of the folder that the device knows, by the constant
STORAGE; modules that plans do not need are imported on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.catalogue import ACT, CUT_ACT, ROUND_ROWS
from edgeinfer.backends.cpu.neurons import catalogue
from edgeinfer.backends.cpu.neurons.layers import SparseLayer, sparse_layers
from edgeinfer.backends.cpu.neurons.order import natural, order_bytes, orders_in, runs_of, table_bytes
from edgeinfer.backends.cpu.record_layers import RecordLowering, RecordMaker, RecordStorage, RecordWindow
from edgeinfer.backends.offload import RecordOffload, RecordSizes
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.jit.code import CompiledFunction, Kernel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.neurons.reads import least_bytes, read_bytes, run_bytes
from edgeinfer.offload.weights import OffloadedWeights

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.device import CpuDevice
    from edgeinfer.backends.cpu.lanes.streamed_weights import Bundles
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


class NeuronLayers:
    """All sparse layers of one model."""

    table_name = "order of neurons"

    def __init__(self, layers: tuple[SparseLayer, ...]) -> None:
        self.layers = layers

    @property
    def table_bytes(self) -> int:
        return table_bytes(self.layers)

    def new_table(self) -> NDArray[np.uint8]:
        """The order of their numbers."""
        return order_bytes(natural(self.layers))

    def check_table(self, path: Path, table: NDArray[np.uint8]) -> None:
        """Raise BadBundle unless the table has a permutation for each layer."""
        orders_in(path, table, self.layers)

    def maker(self, file: GGUFFile, table: NDArray[np.uint8]) -> RecordMaker:
        """What makes records in the order of a table."""
        from edgeinfer.backends.cpu.neurons.making import NeuronMaker

        return NeuronMaker(file, self.layers, orders_in(file.path, table, self.layers))

    def sizes(self, bundles: Sequence[Bundle]) -> RecordSizes:
        """Sizes for plans."""
        layers = runs_of(self.layers, bundles)
        n_bytes = sum(bundle.padded_bytes for layer in layers for bundle in layer.bundles)
        sizes = least_bytes(layers), run_bytes(layers), read_bytes(layers)
        return RecordSizes(n_bytes, *sizes, sum(layer.n_neurons for layer in layers), len(layers))

    def kernels(self, isa_name: str) -> list[Kernel | CompiledFunction]:
        """What the calls and the reading of these layers need."""
        found: list[Kernel | CompiledFunction] = [catalogue.READ_RECORDS]
        for layer in self.layers:
            acts = CUT_ACT if layer.act.threshold else ACT
            found += [acts[layer.act.activation], catalogue.MARK_ACTIVE, catalogue.LIST_ACTIVE, ROUND_ROWS]
            if layer.layout.up is not None:
                found.append(catalogue.chosen_product(layer.layout.up, isa_name))
            found.append(catalogue.column_product(layer.layout.down, isa_name))
        return found

    def lower(self, shared: Mapping[int, int], isa_name: str, lowering: CpuLowering) -> RecordLowering:
        """What makes the calls of these layers."""
        from edgeinfer.backends.cpu.neurons.lowering import SparseFfnLowering

        return SparseFfnLowering(self.layers, shared, isa_name, lowering)

    def open(self, source: Bundles, stored: OffloadedWeights, library: KernelLibrary) -> RecordWindow:
        """Memory for neurons, and what reads them into it."""
        from edgeinfer.backends.cpu.neurons.reading import NeuronReading

        return NeuronReading(source, self.layers, stored, library)


def _find(ops: Sequence[Op], tensors: Mapping[str, TensorInfo]) -> NeuronLayers | None:
    layers = tuple(sparse_layers(ops, tensors))
    return NeuronLayers(layers) if layers else None


def _has(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> bool:
    return bool(sparse_layers(list(spec.ops()), tensors))


def _offload(open_device: Callable[[DeviceOptions], CpuDevice]) -> RecordOffload:
    from edgeinfer.backends.cpu.neurons.watching import watching

    return RecordOffload(_has, order_bytes, watching(open_device))


STORAGE = RecordStorage(_find, _offload)
