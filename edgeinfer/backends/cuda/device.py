"""The CUDA device: finds the GPU, says how much of its memory may be used, compiles models and parts of them.

In: device options. Out: lanes. "cuda:1" names the second GPU. EDGEINFER_CUDA_VRAM limits the bytes of GPU memory that a
lane takes, so that weights are streamed.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from edgeinfer.backends.base import DeviceOptions, Limits, Progress, no_progress
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.models.fragment import Fragment
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.spec import ModelSpec

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.driver import Driver
    from edgeinfer.backends.cuda.lane import CudaFragmentLane, CudaLane

RESERVE = 256 << 20
"""Bytes of GPU memory left to the driver, compiled kernels and the screen."""
VRAM_VARIABLE = "EDGEINFER_CUDA_VRAM"
INSTALL = "pip install 'edgeinfer[cuda]'"


class CudaDevice:
    """Numba CUDA kernels on one GPU. `vram_bytes`: what a lane may take; None: what is free."""

    name = "cuda"
    batch_invariant = True

    def __init__(self, driver: Driver, vram_bytes: int | None = None) -> None:
        self.driver = driver
        self._vram_bytes = vram_bytes

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> CudaLane:
        """Pack the weights and put them on the GPU. Raises DoesNotFit."""
        from edgeinfer.backends.cuda.lane import CudaLane

        return CudaLane(self.driver, spec, file, limits, self._budget(), progress)

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> CudaFragmentLane:
        """The same for part of a model. Raises DoesNotFit."""
        from edgeinfer.backends.cuda.lane import CudaFragmentLane

        return CudaFragmentLane(self.driver, fragment, file, limits, self._budget(), progress)

    def _budget(self) -> int | None:
        """Bytes of GPU memory that a lane may take."""
        free = self.driver.free_bytes()
        limits = [self._vram_bytes, None if free is None else max(0, free - RESERVE)]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    def close(self) -> None:
        """Lanes own the memory; nothing is left here."""


def open_device(options: DeviceOptions) -> CudaDevice:
    """The GPU that the options name. Raises DeviceUnavailable, BadSetting."""
    for package in ("numba_cuda", "cuda"):
        if importlib.util.find_spec(package) is None:
            raise DeviceUnavailable(f"the cuda device needs numba-cuda, which is not installed: {INSTALL}")
    target = options.target or "0"
    if not target.isdecimal():
        raise BadSetting(f"cuda:{target} names no GPU; use cuda, or cuda: and its number, such as cuda:1")
    return CudaDevice(_driver(int(target)), vram_limit(os.environ.get(VRAM_VARIABLE)))


def _driver(number: int) -> Driver:
    try:
        from edgeinfer.backends.cuda.driver import Driver
    except ImportError as error:
        raise DeviceUnavailable(f"Numba CUDA does not load ({error}); install it again: {INSTALL}") from None
    return Driver(number)


def vram_limit(text: str | None) -> int | None:
    """The value of EDGEINFER_CUDA_VRAM. Raises BadSetting."""
    if not text:
        return None
    if not text.isdecimal():
        raise BadSetting(f"{VRAM_VARIABLE} is {text!r}; give a number of bytes, such as 4000000000")
    return int(text)
