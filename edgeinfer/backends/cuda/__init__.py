"""The CUDA device: Numba kernels over weights that stay quantised, on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions, Footprint, Limits
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import TensorInfo


def _footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """The memory a lane takes, as `footprint.footprint` counts it; imported on first use to keep startup short."""
    from edgeinfer.backends.cuda.footprint import footprint as counted

    return counted(spec, tensors, limits)


def _open(options: DeviceOptions) -> Device:
    from edgeinfer.backends.cuda.device import open_device  # loads Numba

    return open_device(options)


def _entrants() -> tuple[str, ...]:
    _open(DeviceOptions()).close()  # raises if there is no GPU
    return ("cuda",)


DEVICE = DeviceKind(
    "cuda",
    "NVIDIA GPUs: Numba CUDA kernels, quantised weights",
    _open,
    _footprint,
    host_targets=frozenset(),
    modules=("numba_cuda",),
    entrants=_entrants,
)
