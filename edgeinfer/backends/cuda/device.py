"""The CUDA device: finds the GPU, determines how much of its memory to use, compiles models and parts of them.

In: device options. Out: lanes. "cuda:1" is the second GPU. EDGEINFER_CUDA_VRAM limits the GPU memory of a lane in
bytes; weights beyond it are streamed. EDGEINFER_CUDA_GEMM is the number of tokens from which products use cuBLAS, which
is faster for prompts but not batch-invariant.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.backends.cuda.ops import DEVICE_OPS
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.graph.graph import Fragment, ModelSpec, whole
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.variants import refuse_thresholds
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.driver import Driver
    from edgeinfer.backends.cuda.gemm import Gemm
    from edgeinfer.backends.cuda.lane import CudaFragmentLane, CudaLane

RESERVE = 256 << 20
"""Bytes of GPU memory left for the driver, compiled kernels and the screen."""
VRAM_VARIABLE = "EDGEINFER_CUDA_VRAM"
GEMM_VARIABLE = "EDGEINFER_CUDA_GEMM"
INSTALL = "pip install 'edgeinfer[cuda]'"


class CudaDevice:
    """Numba CUDA kernels on one GPU. `vram_bytes`: the most a lane may take; None: all free memory."""

    name = "cuda"

    def __init__(self, driver: Driver, vram_bytes: int | None = None, gemm: Gemm | None = None) -> None:
        self.driver = driver
        self._vram_bytes, self._gemm = vram_bytes, gemm

    @property
    def batch_invariant(self) -> bool:
        """True, unless large products use cuBLAS."""
        return self._gemm is None

    @property
    def capabilities(self) -> DeviceCapabilities:
        return DeviceCapabilities(fragments=self, parts=self, memory=self)

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> CudaLane:
        """Pack the weights and move them to the GPU. Raises DoesNotFit."""
        from edgeinfer.backends.cuda.lane import CudaLane

        return CudaLane(self.compile_fragment(whole(spec), file, limits, progress), spec.logits)

    def compile_fragment(
        self, fragment: Fragment, file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> CudaFragmentLane:
        """The same for part of a model. Raises DoesNotFit."""
        return self.compile_fragments((fragment,), file, limits, progress)[0]

    def compile_fragments(
        self, fragments: Sequence[Fragment], file: GGUFFile, limits: Limits, progress: Progress = no_progress
    ) -> list[CudaFragmentLane]:
        """The same for parts that run in turns and share memory, streams and the limit. Raises DoesNotFit."""
        from edgeinfer.backends.cuda.lane import CudaFragmentLane
        from edgeinfer.backends.cuda.model import CudaModel

        for fragment in fragments:
            refuse_thresholds(fragment.spec, self.name)
            DEVICE_OPS.check(fragment.spec.ops())
        model = CudaModel(self.driver, fragments, file, limits, self._budget(), progress, self._gemm)
        return [CudaFragmentLane(model, fragment, number) for number, fragment in enumerate(fragments)]

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of GPU memory that can be used now."""
        return self._budget()

    def _budget(self) -> int | None:
        """Bytes of GPU memory that a lane may take."""
        free = self.driver.free_bytes()
        limits = [self._vram_bytes, None if free is None else max(0, free - RESERVE)]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    def close(self) -> None:
        """Nothing to release: lanes own the memory."""


def open_device(options: DeviceOptions) -> CudaDevice:
    """The GPU selected by the options. Raises DeviceUnavailable, BadSetting."""
    for package in ("numba_cuda", "cuda"):
        if importlib.util.find_spec(package) is None:
            raise DeviceUnavailable(f"the cuda device needs numba-cuda, which is not installed: {INSTALL}")
    target = options.target or "0"
    if not target.isdecimal():
        raise BadSetting(f"cuda:{target} names no GPU; use cuda, or cuda: and its number, such as cuda:1")
    driver = _driver(int(target))
    return CudaDevice(driver, number_in(VRAM_VARIABLE, "4000000000"), _gemm(number_in(GEMM_VARIABLE, "64")))


def _driver(number: int) -> Driver:
    try:
        from edgeinfer.backends.cuda.driver import Driver
    except ImportError as error:
        raise DeviceUnavailable(f"Numba CUDA does not load ({error}); install it again: {INSTALL}") from None
    return Driver(number)


def _gemm(fewest: int | None) -> Gemm | None:
    """cuBLAS for products of at least this many tokens. Raises DeviceUnavailable."""
    if fewest is None:
        return None
    from edgeinfer.backends.cuda.gemm import Gemm, cublas

    return Gemm(fewest, cublas())


def number_in(variable: str, example: str) -> int | None:
    """The number in an environment variable, None if it is not set. Raises BadSetting."""
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise BadSetting(f"{variable} is {text!r}; give a number above zero, such as {example}")
    return int(text)
