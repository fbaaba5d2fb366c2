"""The window: a ring of memory that bundles are streamed through in the order of a pass, read ahead of their use.

In: bundles in read order, a source, memory. Out: each bundle at its place in the ring, in order, again and again. Every
bundle has one place, which may be read into as soon as the previous occupant has been released. Threads sleep while
there is no room. Knows nothing of what bundles hold.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import EngineClosed, UnsupportedModel
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.waiting import Bell, BusyClock
from edgeinfer.offload.weights import WeightReads


class BundleSource(Protocol):
    """Where bundles are read from, by several threads at a time."""

    def read(self, bundle: Bundle, into: memoryview) -> None:
        """Fill the `padded_bytes` of `into` with a bundle. Raises EdgeInferError."""
        ...

    def close(self) -> None: ...


def ring_places(sizes: Sequence[int], n_bytes: int) -> tuple[list[int], list[int]]:
    """The place of each piece of a cycle in a ring, and how many pieces back the last one lies that it overlaps.

    Each size is at most `n_bytes`. A piece that overlaps no other waits for itself, one cycle earlier.
    """
    places, end = [], 0
    for size in sizes:
        start = end if end + size <= n_bytes else 0
        places.append(start)
        end = start + size
    count, distances = len(sizes), []
    for number in range(count):
        first, stop = places[number], places[number] + sizes[number]
        for back in range(1, count + 1):
            other = (number - back) % count
            if places[other] < stop and first < places[other] + sizes[other]:
                distances.append(back)
                break
    return places, distances


class BundleWindow:
    """A ring that bundles are read into ahead of their use. Use it from one thread; close it to stop the others."""

    def __init__(
        self, source: BundleSource, bundles: Sequence[Bundle], memory: NDArray[np.uint8], n_readers: int
    ) -> None:
        """`memory`: uint8[n], page aligned, with room for at least the largest bundle."""
        self._source, self._bundles, self._memory = source, tuple(bundles), memory
        self._places, self._distances = ring_places([bundle.padded_bytes for bundle in bundles], memory.nbytes)
        self._lock = threading.Lock()
        self._arrived, self._room = Bell(), threading.Condition(self._lock)
        self._arrivals = [-1] * len(self._bundles)  # the number of the last finished read of each bundle
        self._asked = self._released = 0  # reads begun, and bundles released, since the last start
        self._failure: BaseException | None = None
        self._halted = self._stopping = False
        self._sizes: Counter[int] = Counter()
        self._n_bytes, self._waited_s, self._n_passes = 0, 0.0, 0
        self._busy = BusyClock()
        self._threads = [
            threading.Thread(target=self._read_ahead, name=f"edgeinfer-read-{number}", daemon=True)
            for number in range(min(n_readers, len(self._bundles)))
        ]
        for thread in self._threads:
            thread.start()

    def place(self, index: int) -> int:
        """Where the bundle lies, in bytes from the start of the memory."""
        return self._places[index]

    def begin(self) -> None:
        """Begin a pass: the first bundle is the next one, even if the last pass was interrupted."""
        self._n_passes += 1
        if not self._bundles:
            return
        if not self._halted and self._failure is None and self._released % len(self._bundles) == 0:
            with self._lock:
                self._room.notify()  # the last pass may have been interrupted before it did this
            return
        with self._lock:
            self._halted = True
        while self._busy.n_flying:  # no more reads begin
            self._arrived.wait()
        with self._lock:
            self._failure = None
            self._asked = self._released = 0
            self._arrivals = [-1] * len(self._bundles)
            self._halted = False
            self._room.notify_all()

    def wait(self, bundle: int) -> None:
        """Wait until a bundle, the next one in order, has been read.

        Raises the error of a failed read, EngineClosed after `close`, UnsupportedModel if the bundle is not the next.
        """
        number = self._released
        index = number % len(self._bundles)
        if self._bundles[index].number != bundle:
            raise UnsupportedModel("this model reads some weights twice in a pass: it can only be run from memory")
        if self._arrivals[index] == number:
            return
        started = time.perf_counter()
        while self._arrivals[index] != number:
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise EngineClosed("the model is closed; load it again")
            self._arrived.wait()
        self._waited_s += time.perf_counter() - started

    def release(self) -> None:
        """Release the bundle that was waited for last: its place may be read into."""
        with self._lock:
            self._released += 1
            self._room.notify()

    @property
    def reading(self) -> WeightReads:
        """What was read so far."""
        with self._lock:
            sizes, read_s = dict(self._sizes), self._busy.seconds
            return WeightReads(self._n_bytes, self._waited_s, self._n_passes, sizes, read_s=read_s)

    def close(self) -> None:
        """Stop reading and free the memory. Safe to call twice."""
        with self._lock:
            self._stopping = True
            self._room.notify_all()
            self._arrived.ring()
        for thread in self._threads:
            thread.join()
        self._memory = self._memory[:0].copy()

    def _may_read(self) -> bool:
        """Whether the next bundle's place is free."""
        if self._failure is not None or self._halted:
            return False
        return self._released > self._asked - self._distances[self._asked % len(self._bundles)]

    def _read_ahead(self) -> None:
        memory = self._memory.data
        while True:
            with self._lock:
                while not (self._stopping or self._may_read()):
                    self._room.wait()
                if self._stopping:
                    return
                number = self._asked
                self._asked += 1
                self._busy.begin()
                if self._may_read():
                    self._room.notify()
            index = number % len(self._bundles)
            bundle, place = self._bundles[index], self._places[index]
            failure: BaseException | None = None
            try:
                self._source.read(bundle, memory[place : place + bundle.padded_bytes])
            except BaseException as reason:  # `wait` raises it when the bundle is needed
                failure = reason
            with self._lock:
                self._busy.end()
                if failure is None:
                    self._arrivals[index] = number
                    self._n_bytes += bundle.padded_bytes
                    self._sizes[bundle.padded_bytes] += 1
                elif self._failure is None:
                    self._failure = failure
                self._arrived.ring()
