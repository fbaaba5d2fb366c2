"""Pulls that ended early: which they are, and what was received of them.

In: the store's folder. Out: `Unfinished` values, from one small file per pull that names its parts. Addresses that may
contain a secret (credentials, a query) are not written to disk, so such pulls are not listed; their parts are kept all
the same. Does not download.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from edgeinfer.file_lock import is_held
from edgeinfer.models.delivery import ModelSource
from edgeinfer.models.download.part import record_path
from edgeinfer.models.download.policy import PullStopped
from edgeinfer.models.store_files import write_paths
from edgeinfer.text_values import path_bytes, path_text

SUFFIX = ".pull"
NOTE_CAP_BYTES = 1 << 16


def key_hash(source: ModelSource) -> str:
    """A name for the files that belong to one source."""
    return hashlib.sha256(path_bytes(source.key)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A pull that can be resumed: the source as the user gave it, and the files with the received data."""

    source: str
    name: str
    nbytes: int  # of everything to receive, 0 while unknown
    parts: tuple[Path, ...] = ()
    note: Path | None = None  # the file that records this pull

    @property
    def done_bytes(self) -> int:
        """Bytes received."""
        return sum(path.stat().st_size for path in self.parts if path.is_file())

    def discard(self) -> None:
        """Delete the received data."""
        discard_parts(self.parts)
        if self.note is not None:
            self.note.unlink(missing_ok=True)


def discard_parts(parts: tuple[Path, ...]) -> None:
    """Delete parts and the records beside them."""
    for path in parts:
        path.unlink(missing_ok=True)
        record_path(path).unlink(missing_ok=True)


class PullNote:
    """The record of a pull while it runs; use with `with`. It stays if the pull fails and a part of it is kept."""

    def __init__(self, folder: Path, source: ModelSource, asked: str) -> None:
        self._path = folder / f".{key_hash(source)}{SUFFIX}"
        is_open = asked.startswith(("http://", "https://"))
        self._is_listed = not is_open or asked.partition("#")[0] == source.text
        self._found = Unfinished(asked, source.text, 0)

    def __enter__(self) -> PullNote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PullStopped):
            error.parts = self._found.parts
            if not error.keeps:
                self._found.discard()
        if kind is None or not self._found.done_bytes:
            self._path.unlink(missing_ok=True)

    def named(self, name: str) -> None:
        """Record the model's name."""
        self._found = replace(self._found, name=name)

    def sized(self, nbytes: int) -> None:
        """Record the model's size."""
        self._found = replace(self._found, nbytes=nbytes)

    def measured(self, nbytes: int | None) -> None:
        """Record how much is received in total, as displayed; less than the model's size if it is compressed."""
        if nbytes and nbytes != self._found.nbytes:
            self.sized(nbytes)
            self._write()

    def parted(self, path: Path) -> None:
        """Record a file before data is received, and write it to disk at once, because the process may be killed."""
        self._found = replace(self._found, parts=(*self._found.parts, path))
        self._write()

    def _write(self) -> None:
        if self._is_listed and self._found.parts:
            record = {
                "source": self._found.source,
                "name": self._found.name,
                "nbytes": self._found.nbytes,
                "parts": [str(part) for part in self._found.parts],
            }
            write_paths(self._path, json.dumps(record, ensure_ascii=False))


def under_way(folder: Path, source: ModelSource) -> tuple[int, int | None]:
    """Bytes received by the pull of a source, and total bytes if known; for processes other than the pulling one."""
    found = _read(folder / f".{key_hash(source)}{SUFFIX}")
    return (0, None) if found is None else (found.done_bytes, found.nbytes or None)


def unfinished_in(folder: Path) -> tuple[Unfinished, ...]:
    """The interrupted pulls with received data, by name, without those that a process is working on."""
    found = [_read(path) for path in folder.glob(f".*{SUFFIX}") if not is_held(path.with_suffix(".lock"))]
    kept = (each for each in found if each is not None and each.done_bytes)
    return tuple(sorted(kept, key=lambda each: each.name.casefold()))


def _read(path: Path) -> Unfinished | None:
    try:
        if path.stat().st_size > NOTE_CAP_BYTES:
            return None
        record = json.loads(path_text(path.read_bytes()))
        parts = tuple(Path(str(part)) for part in record["parts"])
        if any(part.suffix != ".part" for part in parts):
            return None  # what is listed here may be deleted
        return Unfinished(str(record["source"]), str(record["name"]), int(record["nbytes"]), parts, path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
