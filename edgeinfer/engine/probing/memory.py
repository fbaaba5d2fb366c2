"""Memory read speed of this machine's cores, by access pattern: one core alone, per node, all together, by footprint.

In: the topology and the cores to use, one thread each, and bytes to read. Out: `MemoryRates`, medians of several
rounds; bytes per second of each pattern. Cores of one kind and node are equivalent: if there are many cores, one of
each such group is measured alone. Each thread first touches its own part, as workers of the engine do with their
weights. Knows nothing of models.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import device_kind
from edgeinfer.jit.code import CodeSource, CompiledFunction
from edgeinfer.jit.library import KernelLibrary, open_library
from edgeinfer.jit.memory import LINE_BYTES, LINES_PER_ROUND, address, aligned
from edgeinfer.process import require_cpus
from edgeinfer.scheduling.machine.profile import CoreRates, Curve, NodeRates
from edgeinfer.scheduling.machine.topology import Topology

LARGEST_BYTES = 256 << 20
SMALLEST_BYTES = 8 << 20
CACHE_SHARES = (0.5, 1, 2, 4)
"""Footprints that are read, as multiples of the last-level cache, besides the largest one;"""
SHORT_SHARES = (0.5,)
"""those of a short probe."""
PATTERNS = ("read_one_stream", "read_two_streams")
"""Access patterns; the faster one counts."""
PROBE_PASSES = 1
ROUNDS = 3
"""Number of rounds: sequential reads hardly vary from one to the next, and each round takes long."""
MOST_ALONE = 8
"""Number of cores up to which each is measured alone, even if they are of one kind."""
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
class MemoryRates:
    """Read rates of all chosen cores together by footprint, of each alone, and of each node's cores together."""

    read: Curve
    cores: tuple[CoreRates, ...]
    nodes: tuple[NodeRates, ...]


class MemoryProbe:
    """Measures with one thread on each of the chosen cores, round after round. Close it."""

    def __init__(self, topology: Topology, chosen: Sequence[int], *, short: bool) -> None:
        self._topology, self._chosen = topology, tuple(chosen)
        self._largest = max(SMALLEST_BYTES, min(LARGEST_BYTES, topology.available_bytes // 8))
        self._sizes = _sizes(topology, self._largest, SHORT_SHARES if short else CACHE_SHARES)
        self._patterns = PATTERNS[:1] if short else PATTERNS
        alone = MOST_ALONE if not short and len(self._chosen) <= MOST_ALONE else 1
        self._groups = _groups(topology, self._chosen, alone)
        self._together: dict[int, list[float]] = {size: [] for size in self._sizes}
        self._alone: dict[tuple[int, ...], list[float]] = {}
        self._n_rounds = 0
        self._open = ExitStack()
        library = reading_library()
        self._readers = self._open.enter_context(MemoryReaders(self._chosen, self._largest, library))
        self._library = library

    def round(self) -> None:
        """Measure everything once more; does nothing after ROUNDS rounds."""
        if self._n_rounds == ROUNDS:
            return
        self._n_rounds += 1
        for size in self._sizes:
            rate = max(self._readers.read(pattern, size, PROBE_PASSES) for pattern in self._patterns)
            self._together[size].append(rate)
        for cores in {*self._groups.values(), *self._node_worker_pools().values()}:
            if cores != self._chosen:
                with MemoryReaders(cores, self._largest // 2, self._library) as readers:
                    rate = max(readers.read(pattern, None, PROBE_PASSES) for pattern in self._patterns)
                self._alone.setdefault(cores, []).append(rate)

    def result(self) -> MemoryRates:
        """The medians of all rounds."""
        by_size = {size: statistics.median(rates) for size, rates in self._together.items()}
        together = by_size[self._largest]
        by_worker_pool = {worker_pool: statistics.median(rates) for worker_pool, rates in self._alone.items()}
        known = {core.number: core for core in self._topology.cores}
        alone = {core: by_worker_pool.get(worker_pool, together) for core, worker_pool in self._groups.items()}
        cores = tuple(CoreRates(core, known[core].kind, known[core].node, alone[core], 1.0) for core in self._chosen)
        nodes = tuple(
            NodeRates(
                node.number, node.total_bytes, by_worker_pool.get(self._node_worker_pools()[node.number], together)
            )
            for node in self._topology.nodes
            if node.number in self._node_worker_pools()
        )
        return MemoryRates(_falling(by_size), cores, nodes)

    def close(self) -> None:
        """Stop the threads."""
        self._open.close()

    def _node_worker_pools(self) -> dict[int, tuple[int, ...]]:
        """The chosen cores of each node that has any; each core touches its buffer first, so it lies on the node."""
        found: dict[int, tuple[int, ...]] = {}
        for core in self._topology.cores:
            if core.number in self._chosen:
                found[core.node] = (*found.get(core.node, ()), core.number)
        return found


def _sizes(topology: Topology, largest: int, shares: Sequence[float]) -> tuple[int, ...]:
    cache = topology.l3_bytes or topology.l2_bytes or SMALLEST_BYTES
    sizes = {max(SMALLEST_BYTES, int(cache * share)) for share in shares}
    return (*sorted(size for size in sizes if size < largest), largest)


def _groups(topology: Topology, chosen: Sequence[int], most_of_each: int) -> dict[int, tuple[int, ...]]:
    """The worker pool of the core that represents each core."""
    found: dict[int, tuple[int, ...]] = {}
    of_group: dict[tuple[str, int], list[int]] = {}
    for core in topology.cores:
        if core.number in chosen:
            measured = of_group.setdefault((core.kind, core.node), [])
            if len(measured) < most_of_each:
                measured.append(core.number)
            found[core.number] = (core.number if core.number in measured else measured[0],)
    return found


def _falling(by_size: dict[int, float]) -> Curve:
    """Make the curve non-increasing: caches hold less of a larger footprint, so it is never read faster."""
    sizes = sorted(by_size)
    return Curve(tuple(sizes), tuple(max(by_size[other] for other in sizes if other >= size) for size in sizes))


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
    sources = device_kind("cpu").code_sources
    assert sources is not None
    return open_library(*sources())


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
