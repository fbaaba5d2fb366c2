"""The order of neurons in a bundle file: a permutation of each sparse layer's neurons, stored as a table.

In: layers and permutations, or bytes of a file. Out: the other form; data that is no permutation is refused. An order
changes only where neurons lie, not their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.header import repair
from edgeinfer.backends.cpu.neurons.layers import SparseLayer
from edgeinfer.errors import BadBundle
from edgeinfer.graph.step import Int32s
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.neurons.reads import LayerRuns

Orders = tuple[Int32s, ...]
"""For each sparse layer the neuron at each position, int32[n_neurons]."""
_NUMBER = np.dtype("<i4")


def natural(layers: Sequence[SparseLayer]) -> Orders:
    """The order in which every neuron is at the position of its number."""
    return tuple(np.arange(layer.layout.n_neurons, dtype=np.int32) for layer in layers)


def positions_of(order: Int32s) -> NDArray[np.int64]:
    """The position of each neuron: int64[n_neurons]."""
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


def order_bytes(orders: Sequence[Int32s]) -> NDArray[np.uint8]:
    """The bytes that a file holds: uint8[4 * all neurons]."""
    parts = [order.astype(_NUMBER).view(np.uint8) for order in orders]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def table_bytes(layers: Sequence[SparseLayer]) -> int:
    """Bytes of the table."""
    return _NUMBER.itemsize * sum(layer.layout.n_neurons for layer in layers)


def orders_in(path: Path, data: NDArray[np.uint8], layers: Sequence[SparseLayer]) -> Orders:
    """The inverse of `order_bytes`, checked. Raises BadBundle unless each layer has a permutation of its neurons."""
    numbers, found, first = data.view(_NUMBER).astype(np.int32), list[Int32s](), 0
    for layer in layers:
        order = numbers[first : first + layer.layout.n_neurons]
        if not np.array_equal(np.sort(order), np.arange(layer.layout.n_neurons)):
            raise BadBundle(f"{path}: its order of neurons is none, as some are missing or there twice; {repair(path)}")
        found.append(order)
        first += layer.layout.n_neurons
    return tuple(found)


def runs_of(layers: Sequence[SparseLayer], bundles: Sequence[Bundle], orders: Orders = ()) -> list[LayerRuns]:
    """The neurons of each sparse layer as runs of records, in the order of a file or in that of their numbers."""
    runs = [(each, each.run) for each in bundles if each.run is not None and each.run.count]
    positions = map(positions_of, orders) if orders else [None] * len(layers)
    return [
        LayerRuns(
            layer.layout.record_bytes,
            layer.layout.n_neurons,
            tuple(bundle for bundle, run in runs if run.layer == number),
            lie,
        )
        for number, (layer, lie) in enumerate(zip(layers, positions, strict=True))
    ]
