"""The CUDA device: Numba kernels over weights that stay quantised, on an NVIDIA GPU."""

from __future__ import annotations

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions
from edgeinfer.backends.cuda.footprint import footprint


def _open(options: DeviceOptions) -> Device:
    from edgeinfer.backends.cuda.device import open_device  # loads Numba

    return open_device(options)


def _entrants() -> tuple[str, ...]:
    _open(DeviceOptions()).close()  # raises where there is no GPU
    return ("cuda",)


DEVICE = DeviceKind(
    "cuda",
    "NVIDIA GPUs: Numba CUDA kernels, weights kept quantised",
    _open,
    footprint,
    host_targets=frozenset(),
    modules=("numba_cuda",),
    entrants=_entrants,
)
