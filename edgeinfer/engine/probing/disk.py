"""Read speed of a disk for uncached data: direct reads of several sizes and queue depths.

In: a folder on the disk. Out: a `Disk`, or None if the system has no reads that bypass its cache. Reads a temporary
file there, which it creates and removes; each thread reads at random offsets.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from edgeinfer.jit.memory import HUGE, aligned
from edgeinfer.offload.bundle_file import PositionedFile
from edgeinfer.private_files import readable_folder
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.temporary import temporary_folder

FILE_BYTES = 128 << 20
SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
SHORT_SIZES = (1 << 20,)
DEPTHS = (1, 4, 16)
SHORT_DEPTHS = (4,)
WINDOW_S = 0.025
"""Time over which reads of one size and depth are counted."""
ROUNDS = 2
"""Number of rounds."""
AT_ONCE_BYTES = 512 << 10
"""Bytes of reads whose random offsets are drawn at once: drawing takes most of the time around small reads."""
PAGE_BYTES = 4096
SPARE = 4
"""Required free space, as a multiple of the file."""


class DiskProbe:
    """Reads a file of its own in `folder`, round after round; `result` is None if that is not possible. Close it."""

    def __init__(self, folder: Path, *, short: bool) -> None:
        self._sizes: tuple[int, ...] = SHORT_SIZES if short else SIZES
        self._depths: tuple[int, ...] = SHORT_DEPTHS if short else DEPTHS
        self._n_bytes = FILE_BYTES // 4 if short else FILE_BYTES
        self._rates: dict[tuple[int, int], list[float]] = {}
        self._path: Path | None = None
        self._n_rounds = 0
        self._open = ExitStack()
        if not hasattr(os, "preadv") or not (hasattr(os, "O_DIRECT") or sys.platform == "darwin"):
            return
        try:
            readable_folder(folder)
            if shutil.disk_usage(folder).free < SPARE * self._n_bytes:
                return
            own = self._open.enter_context(temporary_folder(".probe", folder))
            path = Path(own) / "bytes"
            _write(path, self._n_bytes)
            with _DirectFile(path):  # raises here, not in a thread, where the file system has no direct reads
                self._path = path
        except OSError:  # a full or read-only disk, or no direct reads
            self.close()

    def round(self) -> None:
        """Read once more with every size and depth; does nothing after ROUNDS rounds."""
        if self._path is None or self._n_rounds == ROUNDS:
            return
        self._n_rounds += 1
        for depth in self._depths:
            for size in self._sizes:
                rate = _rate(self._path, self._n_bytes, size, depth)
                self._rates.setdefault((depth, size), []).append(rate)

    def result(self) -> Disk | None:
        """The medians of all rounds."""
        if self._path is None or not self._rates:
            return None
        found = {kind: statistics.median(rates) for kind, rates in self._rates.items()}
        return Disk(
            {depth: Curve(self._sizes, tuple(found[depth, size] for size in self._sizes)) for depth in self._depths}
        )

    def close(self) -> None:
        """Remove the file."""
        self._open.close()


def _write(path: Path, n_bytes: int) -> None:
    """Incompressible bytes, flushed to the disk before this returns."""
    block = random.Random(0).randbytes(min(n_bytes, 4 << 20))
    with path.open("wb") as file:
        for _ in range(-(-n_bytes // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _rate(path: Path, n_bytes: int, size: int, depth: int) -> float:
    """Bytes per second of `depth` threads that each read `size` bytes at a time."""
    counts = [0] * depth
    room = aligned((max(HUGE, depth * size),), np.uint8)[: depth * size].reshape(depth, size)
    room[:, ::PAGE_BYTES] = 1  # touched beforehand, on huge pages: the disk writes to those twice as fast
    started = time.perf_counter()

    def read(number: int) -> None:
        draw, places, memory = np.random.default_rng(number), max(1, n_bytes // size), room[number].data
        with _DirectFile(path) as file:
            while True:
                for offset in (draw.integers(0, places, max(1, AT_ONCE_BYTES // size)) * size).tolist():
                    counts[number] += file.read_into(memory, offset)
                    if time.perf_counter() - started >= WINDOW_S:
                        return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(1.0, sum(counts) / (time.perf_counter() - started))


class _DirectFile(PositionedFile):
    """A file opened for reads that bypass the system's cache."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(self.descriptor, fcntl.F_NOCACHE, 1)

    def __enter__(self) -> _DirectFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
