"""Swap space: keys and values of preempted requests, in RAM up to a limit, then in files.

In: sequences with cached tokens. Out: the same sequences, later, bit for bit. What fits nowhere is dropped, and its
text is read again. Files have no name, so nothing is left behind whatever happens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.errors import EdgeInferError, EngineClosed
from edgeinfer.offload.bundle_file import bundles_folder

RAM_BYTES = 1 << 30


@dataclass(slots=True)
class SwappedSequence:
    """The number of cached tokens of a sequence, and the executor's state for them, in RAM or in a file."""

    tokens: tuple[int, ...]
    state: bytes | None
    file: BinaryIO | None
    n_bytes: int


@dataclass(slots=True)
class SwapCounts:
    """How often keys and values were swapped out to RAM or to files, dropped, and swapped in."""

    in_ram: int = 0
    on_disk: int = 0
    dropped: int = 0
    swapped_in: int = 0


def disk_folder() -> Path:
    """A folder that is on a disk, since the folder for temporary files may be in memory. Raises OSError."""
    folder = bundles_folder().with_name("swap")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class SwapSpace:
    """Keys and values of preempted sequences; needs the engine's lock."""

    def __init__(self, most_ram_bytes: int = RAM_BYTES, folder: Callable[[], Path] = disk_folder) -> None:
        """`folder`: returns the folder for swap files."""
        self._most_ram_bytes, self._folder = most_ram_bytes, folder
        self._swapped: dict[CachedSequence, SwappedSequence] = {}
        self.counts = SwapCounts()

    @property
    def ram_bytes(self) -> int:
        """Bytes held in RAM."""
        return sum(swapped.n_bytes for swapped in self._swapped.values() if swapped.state is not None)

    def swap_out(self, cached: CachedSequence) -> None:
        """Free a sequence's memory, and save its contents if there is room."""
        self.drop(cached)
        swapped = self._saved(cached)
        if swapped is None:
            self.counts.dropped += 1
        else:
            self._swapped[cached] = swapped
        cached.forget()

    def swap_in(self, cached: CachedSequence) -> None:
        """Restore a sequence's saved contents if there are any and they fit; otherwise its text is read again."""
        swapped = self._swapped.pop(cached, None)
        if swapped is None:
            return
        try:
            state = swapped.state if swapped.state is not None else _read(swapped)
            cached.put_back(swapped.tokens, state)
            self.counts.swapped_in += 1
        except EngineClosed:
            raise
        except (OSError, MemoryError, EdgeInferError):  # no room, a damaged file, saved on another device
            cached.forget()
            self.counts.dropped += 1
        finally:
            if swapped.file is not None:
                swapped.file.close()

    def drop(self, cached: CachedSequence) -> None:
        """Drop the saved contents of a sequence."""
        swapped = self._swapped.pop(cached, None)
        if swapped is not None and swapped.file is not None:
            swapped.file.close()

    def close(self) -> None:
        """Drop everything."""
        for cached in tuple(self._swapped):
            self.drop(cached)

    def _saved(self, cached: CachedSequence) -> SwappedSequence | None:
        """Save the contents of a sequence if there is room for them."""
        if not cached.n_cached:
            return None
        try:
            tokens, state = cached.save()
        except (EdgeInferError, MemoryError):  # an executor that cannot save, or no room for the saved contents
            return None
        if self.ram_bytes + len(state) <= self._most_ram_bytes:
            self.counts.in_ram += 1
            return SwappedSequence(tokens, state, None, len(state))
        file: BinaryIO | None = None
        try:
            file = tempfile.TemporaryFile(dir=self._folder())  # noqa: SIM115  # it stays open
            file.write(state)
            file.flush()
        except OSError:
            if file is not None:
                file.close()
            return None
        self.counts.on_disk += 1
        return SwappedSequence(tokens, None, file, len(state))


def _read(swapped: SwappedSequence) -> bytes:
    assert swapped.file is not None
    swapped.file.seek(0)
    state = swapped.file.read()
    if len(state) != swapped.n_bytes:
        raise OSError("cut short")
    return state
