"""The CPU device: Numba kernels over repacked panels, a worker pool of pinned threads, one tape per model.

`DEVICE` is the public entry point: no module outside this folder imports anything else from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.backends.base import Device, DeviceKind, DeviceOptions
from edgeinfer.backends.cpu.footprint import footprint
from edgeinfer.settings import KVKind

if TYPE_CHECKING:
    from edgeinfer.backends.offload import WeightOffload


def _open(options: DeviceOptions) -> Device:
    from edgeinfer.backends.cpu.device import open_device  # loads Numba

    return open_device(options)


def _code_folder() -> Path:
    from edgeinfer.backends.cpu.catalogue import kernel_folder  # loads LLVM, since the CPU is part of the name

    return kernel_folder()


def _compile_ahead(kv: KVKind, ggml_types: Sequence[int]) -> None:
    from edgeinfer.backends.cpu.device import compile_usual  # loads Numba

    compile_usual(kv, ggml_types)


def _offload() -> WeightOffload:
    from edgeinfer.backends.cpu.offload import OFFLOAD  # not needed for models that fit in memory

    return OFFLOAD


DEVICE = DeviceKind(
    "cpu",
    "our own engine: Numba kernels on pinned worker threads",
    _open,
    footprint,
    code_folder=_code_folder,
    compile_ahead=_compile_ahead,
    offload=_offload,
)
