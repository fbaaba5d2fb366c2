"""Numba's CUDA simulator several times faster: blocks that wait instead of polling, and calls that only call.

The simulator starts a Python thread for each thread of each block and asks them all, again and again, whether they have
reached `syncthreads`; it wraps every number that is read, locks a module at each call of a device function, and walks
the stack to find a shared array. Here the threads of a block meet at a barrier and go on to the next block; where a
kernel never meets, one Python thread is all of them, one after the other; arrays are NumPy's own. What kernels see
stays the same.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from _thread import LockType
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType

import numpy as np
from numba import cuda
from numba.cuda.simulator import kernel, kernelapi
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from edgeinfer.backends.cuda import kernels
from edgeinfer.backends.cuda.kernels import intrinsics

KERNELS = [
    importlib.import_module(f"{kernels.__name__}.{each.name}") for each in pkgutil.iter_modules(kernels.__path__)
]
PATIENCE_S = 60.0


class Meeting:
    """A barrier of threads, some of which end before others."""

    def __init__(self, count: int) -> None:
        self._running, self._waiting = count, list[LockType]()
        self._guard = threading.Lock()

    def wait(self, own: LockType) -> None:
        """Go on once all that still run are here."""
        with self._guard:
            self._waiting.append(own)
            self._release()
        assert own.acquire(timeout=PATIENCE_S), "a thread of the block has not come to syncthreads"

    def leave(self) -> None:
        """This thread has ended."""
        with self._guard:
            self._running -= 1
            self._release()

    def _release(self) -> None:
        if len(self._waiting) >= self._running:
            for lock in self._waiting:
                lock.release()
            self._waiting.clear()


class Block:
    """What threads of a block share, by name: where the lanes of its warps meet."""


class Thread(threading.Thread):
    """The threads of one place in all blocks of a grid, one after the other."""

    def __init__(self, number: int, point: tuple[int, ...], run: Callable[[Thread], None]) -> None:
        super().__init__(daemon=True)
        self.thread_id, self.threadIdx, self._run = number, kernelapi.Dim3(*point), run
        self.blockIdx: kernelapi.Dim3 | None = None
        self.meeting: Meeting | None = None
        self._manager: Block | None = None
        self._woken = threading.Lock()
        self._woken.acquire()
        self.failure: BaseException | None = None

    def syncthreads(self) -> None:
        if self.meeting is not None:
            self.meeting.wait(self._woken)

    def run(self) -> None:
        try:
            self._run(self)
        except BaseException as reason:
            self.failure = reason


class Shared(kernelapi.FakeCUDAShared):  # type: ignore[misc]
    """Shared arrays by the line that asks for them, as the simulator has them."""

    def array(self, shape: int, dtype: object, alignment: int | None = None) -> object:
        caller = sys._getframe(1)
        place = (caller.f_code, caller.f_lineno)
        if place in self._allocations:
            return self._allocations[place]
        return self._allocations.setdefault(place, np.empty(shape, dtype))  # type: ignore[call-overload] # the first one's


class Inside(kernelapi.FakeCUDAModule):  # type: ignore[misc]
    """The module `cuda` as kernels see it."""

    def __init__(self, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
        self.gridDim, self.blockDim = kernelapi.Dim3(*grid), kernelapi.Dim3(*block)
        self._local, self._shared = kernelapi.FakeCUDALocal(), Shared(0)


class InsideAlone(Inside):
    """The same where one Python thread is all threads: where it is stands here."""

    threadIdx = blockIdx = kernelapi.Dim3(0, 0, 0)  # noqa: N815
    syncthreads = staticmethod(lambda: None)


def meets(function: FunctionType) -> bool:
    """Whether threads of a kernel wait for each other, by the names it uses."""
    used = set(function.__code__.co_names)
    return "syncthreads" in used or (intrinsics.LANES > 1 and bool(used & {"lane_sum", "lane_max"}))


@contextmanager
def entered(module: Inside, function: FunctionType) -> Iterator[None]:
    """Let the modules of kernels, and that of `function`, have `module` as their `cuda`."""
    rooms = [room for room in (*map(vars, KERNELS), function.__globals__) if room.get("cuda") is cuda]
    with kernel._push_kernel_context(module):
        for room in rooms:
            room["cuda"] = module
        try:
            yield
        finally:
            for room in rooms:
                room["cuda"] = cuda


def run_alone(function: FunctionType, grid: tuple[int, ...], block: tuple[int, ...], arguments: list[object]) -> None:
    """All threads of all blocks, one after the other."""
    module = InsideAlone(grid, block)
    points = [kernelapi.Dim3(*point) for point in np.ndindex(*block)]
    with entered(module, function):
        for place in np.ndindex(*grid):
            module.blockIdx = kernelapi.Dim3(*place)
            for point in points:
                module.threadIdx = point
                function(*arguments)


def run_together(
    function: FunctionType, grid: tuple[int, ...], block: tuple[int, ...], arguments: list[object]
) -> None:
    """The threads of a block at the same time, which meet after each block; raises what a thread of them raised."""
    count = int(np.prod(block))
    places = [kernelapi.Dim3(*place) for place in np.ndindex(*grid)]
    blocks = [(place, Block(), Meeting(count)) for place in places]
    between = threading.Barrier(count)

    def run(thread: Thread) -> None:
        for thread.blockIdx, thread._manager, thread.meeting in blocks:
            try:
                function(*arguments)
            except BaseException:
                between.abort()
                raise
            finally:
                thread.meeting.leave()
            between.wait(PATIENCE_S)

    threads = [Thread(number, point[::-1], run) for number, point in enumerate(np.ndindex(*block[::-1]))]
    with entered(Inside(grid, block), function):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    failures = [thread.failure for thread in threads if thread.failure is not None]
    failures.sort(key=lambda reason: isinstance(reason, threading.BrokenBarrierError))
    if failures:
        raise failures[0]


def call(self: kernel.FakeCUDAKernel, *arguments: object) -> object:
    """Call a device function, or run a kernel over its grid."""
    if self._device:
        return self.fn(*arguments)
    grid, block = kernel.normalize_kernel_dimensions(self.grid_dim, self.block_dim)
    plain = [each._ary if isinstance(each, FakeCUDAArray) else each for each in arguments]
    together = int(np.prod(block)) > 1 and meets(self.fn)
    (run_together if together else run_alone)(self.fn, grid, block, plain)
    return None


def install() -> None:
    """Let the simulator of this process run kernels so."""
    kernel.FakeCUDAKernel.__call__ = call
