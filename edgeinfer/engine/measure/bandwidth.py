"""Memory read bandwidth of this machine for a number of threads: the best of several access patterns, measured now.

In: cores to read with (one thread each) and bytes to read. Out: bytes per second of each pattern. Each thread first
touches its own part, as workers of the engine do with their weights. Knows nothing of models.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import device_kind
from edgeinfer.jit.code import CodeSource, CompiledFunction
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import LINE_BYTES, LINES_PER_ROUND, address, aligned
from edgeinfer.process import require_cpus

PASSES = 5
BYTES_MIN, BYTES_MAX = 512 << 20, 2 << 30
CACHES = 4
"""Size of the buffer as a multiple of the last-level cache, within the limits above."""

READ_PATTERNS = {
    name: (streams, CompiledFunction(name, CodeSource("edgeinfer.jit", "read_memory", name), 2))
    for name, streams in (
        ("read_one_stream", 1),
        ("read_one_stream_ahead", 1),
        ("read_two_streams", 2),
        ("read_two_streams_ahead", 2),
        ("read_four_streams", 4),
        ("read_four_streams_ahead", 4),
    )
}
"""Access patterns: the number of streams of each, and its function of (start, lines of a stream)."""
Read = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class PatternRate:
    """Bytes per second of one pattern: the median of PASSES passes over the whole buffer."""

    pattern: str
    bytes_per_s: float


def buffer_bytes(available_bytes: int, cache: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of a buffer well larger than the caches, at most a quarter of the available memory."""
    sizes = [_cache_bytes(path.read_text()) for path in cache.glob("index*/size")]
    wanted = min(BYTES_MAX, max(BYTES_MIN, CACHES * max(sizes, default=0)))
    return min(wanted, available_bytes // 4)


def _cache_bytes(text: str) -> int:
    """Bytes of a size as sysfs writes it: 491520K."""
    digits = text.strip().rstrip("KMG")
    return int(digits) << {"": 0, "K": 10, "M": 20, "G": 30}[text.strip()[len(digits) :]]


def reading_library() -> KernelLibrary:
    """The compiled patterns, stored beside the CPU device's kernels."""
    folder = device_kind("cpu").code_folder
    assert folder is not None
    return KernelLibrary(folder())


def measure(cores: Sequence[int], n_bytes: int, library: KernelLibrary | None = None) -> list[PatternRate]:
    """Read `n_bytes` with one thread on each of `cores`, pattern after pattern."""
    with MemoryReaders(cores, n_bytes, library) as readers:
        return [PatternRate(name, readers.read(name)) for name in READ_PATTERNS]


class MemoryReaders:
    """One thread per core, each with a part of a buffer of `n_bytes`; all start each pass together. Close it."""

    def __init__(self, cores: Sequence[int], n_bytes: int, library: KernelLibrary | None = None) -> None:
        """Raises BadSetting for a core that cannot be used here."""
        require_cpus(cores)
        self._library = library or reading_library()
        self._buffer: NDArray[np.uint8] = aligned((len(cores), _share(n_bytes, len(cores))), np.uint8)
        self._start, self._end = threading.Barrier(len(cores) + 1), threading.Barrier(len(cores) + 1)
        self._turns, self._lines = 1, 0
        self._read: Read | None = None
        self._times = [(0.0, 0.0)] * len(cores)  # start and end of each thread: this thread may wake up late
        self._threads = [threading.Thread(target=self._work, args=(n, core)) for n, core in enumerate(cores)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> MemoryReaders:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def read(self, pattern: str, n_bytes: int | None = None, n_passes: int = PASSES) -> float:
        """Bytes per second when reading the first `n_bytes` (None: all): the median of the passes."""
        streams, function = READ_PATTERNS[pattern]
        n_cores, most = self._buffer.shape
        share = most if n_bytes is None else min(most, _share(n_bytes, n_cores))
        self._lines = share // LINE_BYTES // streams
        self._turns = max(1, BYTES_MIN // 2 // (share * n_cores))  # repeated, so that starting costs little
        self._read = self._library.function(function)
        seconds = []
        for _ in range(n_passes + 1):  # the first pass fills caches
            self._start.wait()
            self._end.wait()
            seconds.append(max(end for _, end in self._times) - min(start for start, _ in self._times))
        return float(share * n_cores * self._turns / statistics.median(seconds[1:]))

    def close(self) -> None:
        """Stop and join the threads."""
        self._read = None
        self._start.wait()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int, core: int) -> None:
        if sys.platform == "linux":
            os.sched_setaffinity(0, {core})
        self._buffer[number] = number + 1  # pages never written would all map to one page of zeros
        while True:
            self._start.wait()
            if self._read is None:
                return
            started = time.perf_counter()
            for _ in range(self._turns):
                self._read(address(self._buffer[number]), self._lines)
            self._times[number] = started, time.perf_counter()
            self._end.wait()


def _share(n_bytes: int, n_cores: int) -> int:
    """Bytes of each core's part: whole rounds of any pattern, at least one."""
    round_bytes = LINE_BYTES * LINES_PER_ROUND * max(streams for streams, _ in READ_PATTERNS.values())
    return max(1, n_bytes // n_cores // round_bytes) * round_bytes
