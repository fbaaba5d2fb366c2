"""Compiles the kernels that models start, for real GPUs, without one: as far as PTX, by NVVM. Run as a program.

python -m tests.unit.backends.cuda.compiling COMPUTE_CAPABILITY MODEL... prints a line for each kernel: its name,
whether it holds double precision, vector loads, dot products and local memory. Arrays are NumPy's, nothing is started.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numba import cuda, types
from numba.cuda import dispatcher
from numba.np import numpy_support
from numpy.typing import DTypeLike, NDArray

from edgeinfer.backends.cuda import driver
from edgeinfer.backends.cuda.device import CudaDevice
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


class CompilingDriver(driver.Driver):
    """Collects what would be started: kernels and the types of their arguments."""

    simulated = True

    def __init__(self) -> None:
        self.kernels, self.name = driver.Kernels(), "compiler"
        self.sizes = driver.Sizes(intrinsics.LANES, intrinsics.NORM_WARPS, intrinsics.THREADS)
        self.seen: dict[tuple[int, tuple[types.Type, ...]], driver.Kernel] = {}

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

    def launch(self, launches: Sequence[driver.Launch], stream: object) -> None:
        for launch in launches:
            if 0 not in launch.grid:
                key = id(launch.kernel), tuple(map(type_of, launch.arguments))
                self.seen[key] = launch.kernel


def type_of(argument: object) -> types.Type:
    """Numba's type of an argument of a kernel."""
    if isinstance(argument, np.ndarray):
        return types.Array(numpy_support.from_dtype(argument.dtype), 1, "C")
    return types.float32 if isinstance(argument, np.float32) else types.int64


def main() -> int:
    major, minor = map(int, sys.argv[1].split("."))

    class Gpu:
        compute_capability = major, minor

    dispatcher.get_current_device = Gpu
    compiler = CompilingDriver()
    for name in sys.argv[2:]:
        golden = Golden.read(name)
        for kv in ("f16", "int8"):
            with Player(CudaDevice(compiler), golden, kv=kv) as player:  # type: ignore[arg-type]
                for count in (1, 2, 3, 8, 20):
                    player.feed(golden.tokens[:count])
                player.lane.copy_slots(np.array([1], np.int32), np.array([2], np.int32))
    for (_, found), kernel in compiler.seen.items():
        function = kernel.py_func  # type: ignore[attr-defined]
        ptx, _ = cuda.compile_ptx(function, found, cc=(major, minor))
        marks = [mark for mark in (".f64", ".v4.", "dp4a", "__local_depot", "shfl.sync") if mark in ptx]
        print(function.__qualname__.partition(".")[0], *marks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
