"""Where keys and values wait of answers whose memory others need: in RAM up to a limit, then in files.

In: sequences with cached tokens. Out: the same sequences, later, with the same bits. What has no place anywhere is
forgotten, and its text is read again. Files have no name, so that nothing stays behind whatever happens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.errors import EdgeInferError, EngineClosed
from edgeinfer.models.bundle_places import bundles_folder

RAM_BYTES = 1 << 30


@dataclass(slots=True)
class Parked:
    """The cached tokens of a sequence, and the executor's state for them: in RAM, or in a file."""

    tokens: tuple[int, ...]
    state: bytes | None
    file: BinaryIO | None
    n_bytes: int


@dataclass(slots=True)
class Parks:
    """How often keys and values were put away in RAM, in files, or forgotten, and how often they came back."""

    in_ram: int = 0
    on_disk: int = 0
    forgotten: int = 0
    back: int = 0


def disk_folder() -> Path:
    """A folder on a disk: where temporary files go may be memory. Raises OSError where it cannot be made."""
    folder = bundles_folder().with_name("parked")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Parking:
    """Keys and values of sequences that wait; under the engine's lock."""

    def __init__(self, most_ram_bytes: int = RAM_BYTES, folder: Callable[[], Path] = disk_folder) -> None:
        """`folder`: gives the one that files are to be in."""
        self._most_ram_bytes, self._folder = most_ram_bytes, folder
        self._parked: dict[CachedSequence, Parked] = {}
        self.counts = Parks()

    @property
    def ram_bytes(self) -> int:
        """What is held in RAM."""
        return sum(each.n_bytes for each in self._parked.values() if each.state is not None)

    def put(self, cached: CachedSequence) -> None:
        """Give a sequence's memory up, and keep what was in it if there is room."""
        self.drop(cached)
        found = self._kept(cached)
        if found is None:
            self.counts.forgotten += 1
        else:
            self._parked[cached] = found
        cached.forget()

    def bring_back(self, cached: CachedSequence) -> None:
        """Put back what was kept of a sequence, if it was and there is room; else it reads its text again."""
        found = self._parked.pop(cached, None)
        if found is None:
            return
        try:
            state = found.state if found.state is not None else _read(found)
            cached.put_back(found.tokens, state)
            self.counts.back += 1
        except EngineClosed:
            raise
        except (OSError, MemoryError, EdgeInferError):  # no room, a damaged file, another device than it was kept from
            cached.forget()
            self.counts.forgotten += 1
        finally:
            if found.file is not None:
                found.file.close()

    def drop(self, cached: CachedSequence) -> None:
        """Forget what was kept of a sequence."""
        found = self._parked.pop(cached, None)
        if found is not None and found.file is not None:
            found.file.close()

    def close(self) -> None:
        """Forget everything."""
        for cached in tuple(self._parked):
            self.drop(cached)

    def _kept(self, cached: CachedSequence) -> Parked | None:
        """What a sequence holds, where there is room for it."""
        if not cached.n_cached:
            return None
        try:
            tokens, state = cached.save()
        except (EdgeInferError, MemoryError):  # an executor that cannot save, or no room for what it saves
            return None
        if self.ram_bytes + len(state) <= self._most_ram_bytes:
            self.counts.in_ram += 1
            return Parked(tokens, state, None, len(state))
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
        return Parked(tokens, None, file, len(state))


def _read(found: Parked) -> bytes:
    assert found.file is not None
    found.file.seek(0)
    state = found.file.read()
    if len(state) != found.n_bytes:
        raise OSError("cut short")
    return state
