"""Short lists in files of the store: models used recently, and models the user removed from the list.

In: the store's folder, names, sources. Out: names and times, sources. If the folder is not writable, the list stays as
it is; lines without a time are valid. Does not check whether the models still exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from edgeinfer.models.manifest import write_paths
from edgeinfer.text_values import path_text

FILE_NAME = ".last-used"
KEPT = 8
"""Number of names tried when starting without a model."""
TIMES_KEPT = 200

Used = tuple[str, datetime | None]


class LastUsed:
    """The list in one folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def names(self) -> tuple[str, ...]:
        """The names, most recent first."""
        return tuple(name for name, _ in self._lines())[:KEPT]

    def times(self) -> Mapping[str, datetime]:
        """When each was last used, if known."""
        return {name: time for name, time in self._lines() if time is not None}

    def put(self, name: str) -> None:
        """Record that this model is used now."""
        if name.splitlines() == [name]:
            now = datetime.now().astimezone()
            others = tuple(other for other in self._lines() if other[0] != name)
            self._write(((name, now), *others[: TIMES_KEPT - 1]))

    def drop(self, name: str) -> bool:
        """Remove a name from the list; returns whether the list changed."""
        lines = self._lines()
        kept = tuple(each for each in lines if each[0] != name)
        return len(kept) < len(lines) and self._write(kept)

    def _lines(self) -> tuple[Used, ...]:
        try:
            lines = path_text(self._path.read_bytes()).splitlines()
        except (OSError, ValueError):
            return ()
        found: dict[str, datetime | None] = {}
        for name, time in map(_parted, lines):
            if name:
                found.setdefault(name, time)
        return tuple(found.items())

    def _write(self, lines: Iterable[Used]) -> bool:
        text = "".join(
            f"{name}\t{time.isoformat(timespec='seconds')}\n" if time else f"{name}\n" for name, time in lines
        )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_paths(self._path, text)
        except OSError:
            return False
        return True


def _parted(line: str) -> Used:
    """The name and the time in a line; the name may contain tabs."""
    name, tab, ending = line.rpartition("\t")
    if tab:
        try:
            return name.strip(), datetime.fromisoformat(ending.strip())
        except ValueError:
            pass
    return line.strip(), None


UNLISTED_FILE_NAME = ".unlisted"


class Unlisted:
    """The models of other programs that the user removed from the list, in one folder: one source per line.

    Pulling such a model lists it again, by its own manifest.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / UNLISTED_FILE_NAME

    def sources(self) -> frozenset[str]:
        """The sources; none if the file cannot be read."""
        try:
            return frozenset(path_text(self._path.read_bytes()).splitlines())
        except (OSError, ValueError):
            return frozenset()

    def add(self, source: str) -> None:
        """Hide a model from the list. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_paths(self._path, "".join(f"{each}\n" for each in sorted({*self.sources(), source})))
