"""Records which neurons fire for which tokens of a text, by running a model over it and watching its sparse layers.

In: an open model, the place of its weights, tokens. Out: for every sparse layer a table of tokens and neurons. Does not
interpret the tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lane import CpuLane
from edgeinfer.backends.cpu.lowering.sparse_layers import SparseLayer
from edgeinfer.graph.op import Op
from edgeinfer.graph.step import Batch, Int32s, Step
from edgeinfer.models.load import Model
from edgeinfer.steps import Progress

Fired = list[NDArray[np.bool_]]
"""bool[T, n_neurons] of each sparse layer."""


def watch_firing(
    model: Model, layers: tuple[SparseLayer, ...], limits: Limits, tokens: Int32s, progress: Progress
) -> Fired:
    """Run int32[T] through the model and record which neurons fire. Raises what compiling the model raises."""
    device = CpuDevice(DeviceOptions())
    try:
        lane = device.compile(model.spec, model.file, limits, progress)
        try:
            return _watched(lane, layers, limits, tokens, progress)
        finally:
            lane.close()
    finally:
        device.close()


def _watched(
    lane: CpuLane, layers: tuple[SparseLayer, ...], limits: Limits, tokens: Int32s, progress: Progress
) -> Fired:
    fired = [np.zeros((len(tokens), layer.layout.n_neurons), bool) for layer in layers]
    numbers = {id(layer.act): number for number, layer in enumerate(layers)}
    done, by_neurons = 0, limits.stored is not None and limits.stored.by_neurons

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
