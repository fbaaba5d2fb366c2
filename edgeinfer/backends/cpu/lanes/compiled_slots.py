"""Slots filled without the interpreter: threads in a compiled loop read a file past the page cache.

In: an open file and where its bundles lie, memory in slots, compiled functions. Out: as `slots.Filling`. While nothing
is to be read, threads sleep in a read of a pipe, and so does the thread that waits for them, which a signal also wakes.
The bytes are not checked here; the first user checks them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.errors import EngineClosed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address
from edgeinfer.offload.slot_records import BUSY_SHIFT, FILLING
from edgeinfer.offload.slots import CLOSED, Numbers, SlotStates

CALLS = ("pread", "read", "write")
CALIBRATION_S = 0.001
"""Shortest time over which the rate of the time stamp counter is measured."""


def can_fill() -> bool:
    """Whether this system has `pread` and pipes that compiled code can call."""
    return sys.platform != "win32" and sys.maxsize > 1 << 32


@dataclass(frozen=True, slots=True)
class FilePlace:
    """The place of a number in a file: whole pages."""

    offset: int
    nbytes: int


class CompiledSlots:
    """Slots filled from a file, which must stay open until this object is closed."""

    def __init__(
        self,
        descriptor: int,
        places: Sequence[FilePlace],
        memory: NDArray[np.uint8],
        n_readers: int,
        library: KernelLibrary,
    ) -> None:
        """`places`: that of each number. `memory`: uint8[slots, bytes], pages."""
        self._library = library  # the library owns the code that readers sleep in
        self._fill, self._want, self._drop, self._settle = (
            library.function(each)
            for each in (catalogue.FILL_SLOTS, catalogue.WANT_SLOTS, catalogue.DROP_SLOTS, catalogue.SETTLE_SLOTS)
        )
        self._least, self._read_ticks = (
            library.function(each) for each in (catalogue.LEAST_SLOT, catalogue.READ_TICKS)
        )
        self.slots, self._list = SlotStates(len(memory)), np.zeros(len(memory), np.int64)
        self._places = np.array([place.offset for place in places], np.int64)
        self._lengths = np.array([place.nbytes for place in places], np.int64)
        self.counts: Numbers = np.zeros(len(places), np.int64)
        self._memory = memory
        self._pipes = [*os.pipe(), *os.pipe()]
        closing = weakref.finalize(self, _close, tuple(self._pipes))  # not in `close`: a thread may be about to read
        closing.atexit = False  # without this, readers of an object that was never closed would sleep for ever
        self._started_s, self._started_ticks = time.perf_counter(), self._read_ticks()
        self._record = self._new_record(descriptor, n_readers)
        self._at, self._turn = address(self._record), self._record["turn"]
        self._threads = [
            threading.Thread(target=self._read_on, name=f"edgeinfer-experts-{number}", daemon=True)
            for number in range(n_readers)
        ]
        for thread in self._threads:
            thread.start()

    def _new_record(self, descriptor: int, n_readers: int) -> NDArray[np.void]:
        record, system = np.zeros(1, FILLING), ctypes.CDLL(None)
        for name in ("orders", "tags", "held", "ranks", "turns", "barred"):
            record[name] = address(getattr(self.slots, name))
        for name, array in (("places", self._places), ("lengths", self._lengths), ("counts", self.counts)):
            record[name] = address(array)
        record["n_turns"] = 1
        record["list"] = address(self._list)
        record["n_slots"], record["memory"] = len(self._memory), address(self._memory)
        record["stride"], record["descriptor"] = self._memory.strides[0], descriptor
        record["most_guesses"], record["epoch"] = max(1, n_readers // 2), self._started_ticks
        for name in CALLS:
            record[name] = ctypes.cast(getattr(system, name), ctypes.c_void_p).value
        for name, end in zip(("work_out", "work_in", "arrived_out", "arrived_in"), self._pipes, strict=True):
            record[name] = end
        return record

    def _read_on(self) -> None:
        self._fill(self._at)

    def take_turns(self, turn: int, n_turns: int, step: int) -> None:
        """As in `Filling`."""
        self._turn[0], self._record["n_turns"], self._record["step"] = turn, n_turns, step

    def want(self, slots: Sequence[int], order: int) -> None:
        """As in `Filling`."""
        self._list[: len(slots)] = slots
        self._want(self._at, len(slots), order)

    def drop(self, slots: Sequence[int]) -> None:
        """As in `Filling`."""
        self._list[: len(slots)] = slots
        self._drop(self._at, len(slots))

    def least(self, most: int) -> int:
        """As in `Filling`."""
        return int(self._least(self._at, most))

    def settle(self, slots: Sequence[int]) -> None:
        """As in `Filling`."""
        self._list[: len(slots)] = slots
        while self._settle(self._at, len(slots)):  # a signal's handler runs here
            if self._record["stopping"][0]:
                raise EngineClosed(CLOSED)

    @property
    def read_s(self) -> float:
        """As in `Filling`."""
        if (passed := time.perf_counter() - self._started_s) < CALIBRATION_S:
            time.sleep(CALIBRATION_S - passed)
        passed_ticks: int = self._read_ticks() - self._started_ticks
        busy, under_way = int(self._record["busy"][0]), int(self._record["under_way"][0])
        if under_way:
            busy += max(0, passed_ticks - under_way % (1 << BUSY_SHIFT))
        return busy * (time.perf_counter() - self._started_s) / passed_ticks

    def close(self) -> None:
        """As in `Filling`."""
        if self._record["stopping"][0]:
            return
        self._record["stopping"] = 1
        os.write(self._pipes[3], b" ")
        os.write(self._pipes[1], b" " * len(self._threads))
        for thread in self._threads:
            thread.join()
        self._memory = self._memory[:0].copy()


def _close(pipes: Sequence[int]) -> None:
    for end in pipes:
        os.close(end)
