"""Which neurons fire for which tokens of a text, observed by running the model over it.

In: an open model, the limits it runs with, tokens. Out: bool[T, n_neurons] of each sparse layer. Loads no compiler
before something is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.neurons.layers import SparseLayer, sparse_layers
from edgeinfer.graph.op import Op
from edgeinfer.graph.step import Batch, Int32s, Step
from edgeinfer.models.load import Model
from edgeinfer.steps import Progress

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.device import CpuDevice
    from edgeinfer.backends.cpu.lanes.lane import CpuLane


FiredTables = list[NDArray[np.bool_]]
"""bool[T, n_neurons] of each sparse layer."""


def watching(
    open_device: Callable[[DeviceOptions], CpuDevice],
) -> Callable[[Model, Limits, Int32s, Progress], FiredTables]:
    """`watch_firing` on a device that is opened for it."""

    def watch(model: Model, limits: Limits, tokens: Int32s, progress: Progress) -> FiredTables:
        layers = sparse_layers(list(model.spec.ops()), model.file.tensors)
        device = open_device(DeviceOptions())
        try:
            return watch_firing(device, model, layers, limits, tokens, progress)
        finally:
            device.close()

    return watch


def watch_firing(
    device: CpuDevice,
    model: Model,
    layers: Sequence[SparseLayer],
    limits: Limits,
    tokens: Int32s,
    progress: Progress,
) -> FiredTables:
    """Run int32[T] through the model and record which neurons fire. Raises what compiling the model raises."""
    lane = device.compile(model.spec, model.file, limits, progress)
    try:
        return _watched(lane, layers, limits, tokens, progress)
    finally:
        lane.close()


def _watched(
    lane: CpuLane, layers: Sequence[SparseLayer], limits: Limits, tokens: Int32s, progress: Progress
) -> FiredTables:
    fired = [np.zeros((len(tokens), layer.layout.n_neurons), bool) for layer in layers]
    numbers = {id(layer.act): number for number, layer in enumerate(layers)}
    done, by_neurons = 0, limits.stored is not None and limits.stored.by_records

    def seen(op: Op) -> None:
        number = numbers.get(id(op))
        if number is not None:
            # where neurons are read singly, hidden values do not exist yet; elsewhere activated ones are never separate
            name = layers[number].activated if by_neurons else layers[number].act.out
            values = lane.value(name)
            fired[number][done : done + len(values)] = values != 0

    while done < len(tokens):
        start = done % limits.n_context
        count = min(limits.max_tokens, limits.n_context - start, len(tokens) - done)
        lane.watch(_step(tokens[done : done + count], start, limits), seen)
        done += count
        progress("watching neurons", done, len(tokens))
    return fired


def _step(tokens: Int32s, start: int, limits: Limits) -> Step:
    """A step of one sequence whose pages lie in order, with the logits of its last token."""
    count = len(tokens)
    places = np.arange(start, start + count, dtype=np.int32)
    zeros, parents = np.zeros(count, np.int32), np.arange(-1, count - 1, dtype=np.int32)
    batch = Batch(tokens, zeros, places, parents, np.array([count - 1], np.int32))
    return Step(batch, zeros, places, np.full(count, start, np.int32), np.arange(limits.n_pages, dtype=np.int32)[None])
