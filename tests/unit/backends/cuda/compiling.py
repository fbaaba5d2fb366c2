"""Compiles the kernels that models start, for real GPUs, without one: as far as PTX, by NVVM. Run as a program.

python -m tests.unit.backends.cuda.compiling COMPUTE_CAPABILITY MODEL... prints a line for each kernel: its name,
whether it holds double precision, vector loads, dot products and local memory. Arrays are NumPy's, nothing is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numba import cuda, types
from numba.cuda import dispatcher
from numba.np import numpy_support
from numpy.typing import DTypeLike, NDArray

from edgeinfer.backends.cuda import driver
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.gemm import Gemm
from edgeinfer.backends.cuda.kernels import intrinsics
from tests.golden.goldens import Golden, Player


class HostArray(np.ndarray):
    """An array of the host in the place of one of the GPU."""

    def copy_to_device(self, ary: NDArray[np.generic], stream: object = None) -> None:
        self[...] = ary

    def copy_to_host(self, ary: NDArray[np.generic], stream: object = None) -> None:
        ary[...] = self


class Nothing:
    """A stream or an event where nothing happens."""

    def synchronize(self) -> None: ...

    def record(self, stream: object) -> None: ...

    def wait(self, stream: object) -> None: ...

    def elapsed_time(self, event: object) -> float:
        return -1.0


Seen = dict[tuple[object, tuple[types.Type, ...]], None]


class Collecting:
    """A kernel that is not started: `seen` gets its function and the types of its arguments."""

    def __init__(self, kernel: driver.GpuKernel, seen: Seen) -> None:
        self._function = kernel.py_func  # type: ignore[attr-defined]
        self._seen = seen

    def __getitem__(self, configuration: tuple[object, ...]) -> Callable[..., None]:
        return self._collect

    def _collect(self, *arguments: object) -> None:
        self._seen[self._function, tuple(map(type_of, arguments))] = None


class CollectingKernels(driver.Kernels):
    """Kernels that are compiled later."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def get(self, module: str, factory: str, *constants: object) -> driver.GpuKernel:
        return Collecting(super().get(module, factory, *constants), self._seen)


class CompilingDriver(driver.Driver):
    """A GPU whose memory is the host's and which starts nothing."""

    simulated = True

    def __init__(self) -> None:
        self.seen: Seen = {}
        self.kernels, self.name = CollectingKernels(self.seen), "compiler"
        self.sizes = driver.BlockSizes(intrinsics.LANES, intrinsics.NORM_WARPS, intrinsics.THREADS)

    def empty(self, count: int, dtype: DTypeLike) -> HostArray:
        return np.zeros(count, dtype).view(HostArray)

    def zeros(self, count: int, dtype: DTypeLike) -> HostArray:
        return self.empty(max(1, count), dtype)

    def pinned(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        return np.zeros(shape, dtype)

    def stream(self) -> Nothing:
        return Nothing()

    def event(self) -> Nothing:
        return Nothing()

    def enter(self) -> None:
        """Every thread may use it."""


def type_of(argument: object) -> types.Type:
    """Numba's type of an argument of a kernel."""
    if isinstance(argument, np.ndarray):
        return types.Array(numpy_support.from_dtype(argument.dtype), 1, "C")
    return types.float32 if isinstance(argument, np.float32) else types.int64


def multiply_nothing(*arguments: object) -> None:
    """A product that nobody computes."""


def main() -> int:
    major, minor = map(int, sys.argv[1].split("."))

    class Gpu:
        compute_capability = major, minor

    dispatcher.get_current_device = Gpu
    compiler = CompilingDriver()
    for name in sys.argv[2:]:
        golden = Golden.read(name)
        for kv in ("f16", "q8"):
            device = CudaDevice(compiler, None, Gemm(20, multiply_nothing))
            with Player(device, golden, kv=kv) as player:  # type: ignore[arg-type]
                for count in (1, 2, 3, 8, 16, 20):
                    player.feed(golden.tokens[:count])
                player.lane.copy_slots(np.array([1], np.int32), np.array([2], np.int32))
    for function, found in compiler.seen:
        ptx, _ = cuda.compile_ptx(function, found, cc=(major, minor))
        marks = [mark for mark in (".f64", ".v4.", "dp4a", "__local_depot", "shfl.sync") if mark in ptx]
        print(function.__qualname__.partition(".")[0], *marks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
