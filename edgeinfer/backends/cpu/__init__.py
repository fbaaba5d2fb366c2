"""The CPU device: Numba kernels over repacked panels, a worker pool of pinned threads, a tape per model."""

from __future__ import annotations

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions
from edgeinfer.backends.cpu.footprint import footprint


def _open(options: DeviceOptions) -> Device:
    from edgeinfer.backends.cpu.device import open_device  # loads Numba

    return open_device(options)


DEVICE = DeviceKind("cpu", "our own engine: Numba kernels on pinned worker threads", _open, footprint)
