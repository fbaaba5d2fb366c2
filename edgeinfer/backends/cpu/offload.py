"""The cpu device's operations for models whose weights do not all stay in memory, collected in one record.

In: bundles and streaming. Out: `OFFLOAD`. Loads no compiler before something is packed or run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.header import is_bundle_file
from edgeinfer.backends.cpu.bundles.orders import runs_of
from edgeinfer.backends.cpu.lowering.sparse_layers import sparse_layers
from edgeinfer.backends.offload import BundlePacking, BundleSizes, NeuronSizes, WeightOffload
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Int32s
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.load import Model
from edgeinfer.offload.neuron_reads import least_bytes, read_bytes, run_bytes
from edgeinfer.steps import Progress


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


def _watch_firing(model: Model, limits: Limits, tokens: Int32s, progress: Progress) -> list[NDArray[np.bool_]]:
    from edgeinfer.backends.cpu.neuron_watch import watch_firing  # loads Numba

    return watch_firing(model, contents_of(model.spec, model.file.tensors).layers, limits, tokens, progress)


OFFLOAD = WeightOffload(_sizes, _has_neurons, _packing, is_bundle_file, _watch_firing)
