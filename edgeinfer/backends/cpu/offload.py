"""The cpu device's operations for models whose weights do not all stay in memory, collected in one record.

In: models, and what opens a device. Out: a `WeightOffload`: sizes of bundles, their packing, and which neurons fire for
which tokens of a text, observed by running the model over it. Loads no compiler before something is packed or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.header import is_bundle_file, runs_of
from edgeinfer.backends.cpu.lowering.fusion import SparseLayer, sparse_layers
from edgeinfer.backends.offload import BundlePacking, BundleSizes, NeuronSizes, WeightOffload
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.step import Batch, Int32s, Step
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.load import Model
from edgeinfer.offload.neuron_reads import least_bytes, read_bytes, run_bytes
from edgeinfer.steps import Progress

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.device import CpuDevice
    from edgeinfer.backends.cpu.lanes.lane import CpuLane


Fired = list[NDArray[np.bool_]]
"""bool[T, n_neurons] of each sparse layer."""


def sizes_of(contents: Contents) -> BundleSizes:
    """Sizes of the bundles of a model."""
    if not contents.layers:
        return BundleSizes(contents.bundles, contents.data_bytes)
    layers = runs_of(contents)
    n_bytes = sum(bundle.padded_bytes for layer in layers for bundle in layer.bundles)
    sizes = least_bytes(layers), run_bytes(layers), read_bytes(layers)
    neurons = NeuronSizes(n_bytes, *sizes, sum(layer.n_neurons for layer in layers), len(layers))
    return BundleSizes(contents.bundles, contents.data_bytes, neurons)


def _sizes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], by_neurons: bool) -> BundleSizes:
    return sizes_of(contents_of(spec, tensors, by_neurons=by_neurons))


def _has_neurons(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> bool:
    return bool(sparse_layers(list(spec.ops()), tensors))


def _packing(model: Model, path: Path, n_workers: int, by_neurons: bool) -> BundlePacking:
    from edgeinfer.backends.cpu.bundles.bundling import Bundling  # loads LLVM

    return Bundling(model, path, n_workers, by_neurons=by_neurons)


def weight_offload(open_device: Callable[[DeviceOptions], CpuDevice]) -> WeightOffload:
    """The operations; a device is opened only to watch neurons."""

    def watch(model: Model, limits: Limits, tokens: Int32s, progress: Progress) -> Fired:
        layers = contents_of(model.spec, model.file.tensors).layers
        device = open_device(DeviceOptions())
        try:
            return watch_firing(device, model, layers, limits, tokens, progress)
        finally:
            device.close()

    return WeightOffload(_sizes, _has_neurons, _packing, is_bundle_file, watch)


def watch_firing(
    device: CpuDevice,
    model: Model,
    layers: tuple[SparseLayer, ...],
    limits: Limits,
    tokens: Int32s,
    progress: Progress,
) -> Fired:
    """Run int32[T] through the model and record which neurons fire. Raises what compiling the model raises."""
    lane = device.compile(model.spec, model.file, limits, progress)
    try:
        return _watched(lane, layers, limits, tokens, progress)
    finally:
        lane.close()


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
