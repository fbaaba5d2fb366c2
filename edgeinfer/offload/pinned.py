"""Pinned bundles: read once, given back one by one if memory runs short, and read again later.

In: a source, the bundles of a file, which of them may stay. Out: addresses. Knows nothing of passes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from edgeinfer.jit.memory import give_back, paged
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.window import BundleSource
from edgeinfer.steps import Progress


class PinnedBundles:
    """Memory for some bundles of a file, in the order of a pass. `numbers`: the bundles in memory."""

    def __init__(
        self,
        source: BundleSource,
        bundles: Sequence[Bundle],
        numbers: Collection[int],
        n_readers: int,
        progress: Progress,
    ) -> None:
        """Read all of them. Raises what the source raises."""
        self._source, self._n_readers = source, n_readers
        self._bundles: dict[int, tuple[Bundle, int]] = {}
        end = 0
        for bundle in bundles:
            if bundle.number in numbers:
                self._bundles[bundle.number] = bundle, end
                end += bundle.padded_bytes
        self._staying = frozenset(number for number, (bundle, _) in self._bundles.items() if bundle.stays)
        self._memory: NDArray[np.uint8] = paged(end)
        self.numbers: frozenset[int] = frozenset()
        self._read(frozenset(self._bundles), progress)

    @property
    def nbytes(self) -> int:
        """Bytes of the bundles in memory."""
        return sum(self._bundles[number][0].padded_bytes for number in self.numbers)

    def address(self, number: int) -> int:
        """Address of a bundle."""
        return int(self._memory.ctypes.data) + self._bundles[number][1]

    def keep(self, numbers: frozenset[int], progress: Progress) -> None:
        """Hold exactly those of these bundles that have room. Raises what the source raises; then none are added."""
        wanted = (numbers & self._bundles.keys()) | self._staying
        self._leave(self.numbers - wanted)
        missing, self.numbers = wanted - self.numbers, self.numbers & wanted
        self._read(missing, progress)

    def close(self) -> None:
        """Free the memory. Safe to call twice."""
        self.numbers, self._memory = frozenset(), np.zeros(0, np.uint8)

    def _read(self, numbers: frozenset[int], progress: Progress) -> None:
        def read(number: int) -> None:
            bundle, start = self._bundles[number]
            self._source.read(bundle, self._memory.data[start : start + bundle.padded_bytes])

        try:
            with ThreadPoolExecutor(self._n_readers) as threads:
                for done, _ in enumerate(threads.map(read, sorted(numbers)), 1):
                    progress("reading weights", done, len(numbers))
        except BaseException:
            self._leave(numbers)
            raise
        self.numbers |= numbers

    def _leave(self, numbers: frozenset[int]) -> None:
        """Give the memory of these bundles back to the operating system."""
        for number in numbers:
            bundle, start = self._bundles[number]
            give_back(self._memory[start : start + bundle.padded_bytes])
