"""The CUDA device: Numba kernels over weights that stay quantised, on an NVIDIA GPU."""

from __future__ import annotations

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions
from edgeinfer.backends.cuda.footprint import footprint


def _open(options: DeviceOptions) -> Device:
    from edgeinfer.backends.cuda.device import open_device  # loads Numba

    return open_device(options)


DEVICE = DeviceKind("cuda", "NVIDIA GPUs: Numba CUDA kernels, weights kept quantised", _open, footprint)
