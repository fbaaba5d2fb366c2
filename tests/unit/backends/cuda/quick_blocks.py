"""Numba's CUDA simulator with blocks that wait instead of polling: several times faster on few cores.

The simulator starts a Python thread for each thread of a block and asks them all, again and again, whether they have
reached `syncthreads`. Here they meet at a barrier of those that still run, and where a kernel never meets, one Python
thread is all threads of the block, one after the other. What kernels see stays the same.
"""

from __future__ import annotations

import threading
from types import FunctionType

import numpy as np
from numba.cuda.simulator import kernel
from numba.cuda.simulator.kernelapi import Dim3

from edgeinfer.backends.cuda.kernels import intrinsics


class Meeting:
    """A barrier of threads, some of which end before others."""

    def __init__(self, count: int) -> None:
        self._running, self._waiting, self._round = count, 0, 0
        self._changed = threading.Condition()

    def wait(self) -> None:
        """Go on once all that still run are here."""
        with self._changed:
            self._waiting += 1
            this_round = self._round
            self._release()
            self._changed.wait_for(lambda: self._round != this_round, 60)

    def leave(self) -> None:
        """This thread has ended."""
        with self._changed:
            self._running -= 1
            self._release()

    def _release(self) -> None:
        if self._waiting and self._waiting >= self._running:
            self._waiting, self._round = 0, self._round + 1
            self._changed.notify_all()


class Thread(kernel.BlockThread):  # type: ignore[misc]
    """A thread of a block that meets the others."""

    meeting: Meeting

    def syncthreads(self) -> None:
        self.meeting.wait()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.meeting.leave()


def meets(function: FunctionType) -> bool:
    """Whether threads of a kernel wait for each other, by the names it uses."""
    used = set(function.__code__.co_names)
    return "syncthreads" in used or (intrinsics.LANES > 1 and bool(used & {"lane_sum", "lane_max"}))


def run_block(manager: kernel.BlockManager, place: tuple[int, ...], *arguments: object) -> None:
    """Run one block to its end; raises what a thread of it raised first."""
    points = [Dim3(*point) for point in np.ndindex(*manager._block_dim)]
    together = meets(manager._f)
    meeting = Meeting(len(points) if together else 1)

    def target() -> None:
        manager._f(*arguments)

    def each() -> None:
        thread = threading.current_thread()
        for number, point in enumerate(points):
            thread.threadIdx, thread.thread_id = point, number  # type: ignore[attr-defined]
            manager._f(*arguments)

    threads = [Thread(target if together else each, manager, place, point, manager._debug) for point in points]
    if not together:
        threads = threads[:1]
    for thread in threads:
        thread.meeting = meeting
        thread.start()
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.exception:
            raise thread.exception[0].with_traceback(thread.exception[1])


def install() -> None:
    """Let the simulator of this process run blocks so."""
    kernel.BlockManager.run = run_block
