"""The cpu device's operations for models whose weights do not all stay in memory, collected in one record.

In: models, and what opens a device. Out: a `WeightOffload`: sizes of bundles, their packing, and what a folder that
adds record layers provides. Loads no compiler before something is packed or run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.header import is_bundle_file
from edgeinfer.backends.cpu.record_layers import record_storage
from edgeinfer.backends.offload import BundlePacking, BundleSizes, WeightOffload
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.load import Model

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.device import CpuDevice


def sizes_of(contents: Contents) -> BundleSizes:
    """Sizes of the bundles of a model."""
    records = None if contents.records is None else contents.records.sizes(contents.bundles)
    return BundleSizes(contents.bundles, contents.data_bytes, records)


def _sizes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], by_records: bool) -> BundleSizes:
    return sizes_of(contents_of(spec, tensors, by_records=by_records))


def _packing(model: Model, path: Path, n_workers: int, by_records: bool) -> BundlePacking:
    from edgeinfer.backends.cpu.bundles.bundling import Bundling  # loads LLVM

    return Bundling(model, path, n_workers, by_records=by_records)


def weight_offload(open_device: Callable[[DeviceOptions], CpuDevice]) -> WeightOffload:
    """The operations; a device is opened only to watch which records a model uses."""
    storage = record_storage()
    return WeightOffload(_sizes, _packing, is_bundle_file, None if storage is None else storage.offload(open_device))
