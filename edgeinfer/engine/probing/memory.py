"""Memory read speed of this machine's cores: one alone, per node, all together, and by footprint.

In: the topology, and the cores to use. Out: `MemoryRates`, medians of several rounds. Cores of one kind and node are
equivalent: if there are many cores, one of each such group is measured alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from edgeinfer.engine.measure.bandwidth import MemoryReaders, reading_library
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
PASSES = 1
ROUNDS = 3
"""Number of rounds: sequential reads hardly vary from one to the next, and each round takes long."""
MOST_ALONE = 8
"""Number of cores up to which each is measured alone, even if they are of one kind."""


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
            rate = max(self._readers.read(pattern, size, PASSES) for pattern in self._patterns)
            self._together[size].append(rate)
        for cores in {*self._groups.values(), *self._node_worker_pools().values()}:
            if cores != self._chosen:
                with MemoryReaders(cores, self._largest // 2, self._library) as readers:
                    rate = max(readers.read(pattern, None, PASSES) for pattern in self._patterns)
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
