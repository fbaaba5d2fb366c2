"""Bundles that are on no disk: a source whose bytes say which bundle they are, and that can be held up or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

from edgeinfer.errors import BadBundle, DeviceFailed
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle


def bundles_of(sizes: Sequence[int], expert: int | None = None) -> list[Bundle]:
    """Bundles of so many pages."""
    found, offset = [], 0
    for number, pages in enumerate(sizes):
        found.append(Bundle(number, "blk.0", offset, pages * PAGE_BYTES, (), expert))
        offset += pages * PAGE_BYTES
    return found


class PaperSource:
    """Fills memory with the bundle's number; counts reads; fails for the numbers in `broken`."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.reads: list[int] = []
        self.checks: list[int] = []
        self.broken: set[int] = set()
        self.damaged: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def read(self, bundle: Bundle, into: memoryview) -> None:
        self.gate.wait()
        time.sleep(self.delay_s)
        if bundle.number in self.broken:
            raise DeviceFailed(f"bundle {bundle.number} cannot be read")
        self.reads.append(bundle.number)
        np.frombuffer(into, np.uint8)[:] = bundle.number

    def check(self, bundle: Bundle, data: np.ndarray) -> None:
        """Nothing is damaged but what tests say."""
        self.checks.append(bundle.number)
        if bundle.number in self.damaged:
            raise BadBundle(f"bundle {bundle.number} is damaged")

    def close(self) -> None:
        """Nothing is open."""
