"""The store's folder and the small files in it: manifests, models used recently, models taken off the list.

In: the environment, the store's folder, names, sources. Out: paths, `Manifest` values, names and times. Paths inside
the store's folder are written relative to it, so that the folder can be moved. A file that is not a manifest reads as
None; if the folder is not writable, a list stays as it is; lines without a time are valid. Independent of where models
come from, and light: code that needs only the folder imports nothing else. Does not check whether the models still
exist.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from edgeinfer.temporary import temporary_path
from edgeinfer.text_values import path_bytes, path_text, user_path

FORMAT = 1
MANIFEST_CAP_BYTES = 1 << 20
FILE_NAME = ".last-used"
KEPT = 8
"""Number of names tried when starting without a model."""
TIMES_KEPT = 200
Used = tuple[str, datetime | None]
UNLISTED_FILE_NAME = ".unlisted"


def default_root() -> Path:
    """The models folder: in $EDGEINFER_HOME, else in the platform's user data directory."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "models"
    import platformdirs

    return Path(platformdirs.user_data_dir("edgeinfer", appauthor=False)) / "models"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model; `sha256` is None if it was never computed."""

    path: Path
    nbytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the store knows of a model."""

    name: str
    source: str  # in full, with version or quant
    key: str  # the key of its source
    asked: str  # the source as the user gave it
    files: tuple[ModelFile, ...]

    @property
    def intact(self) -> bool:
        """Whether every file exists with the recorded size."""
        return all(_size(file.path) == file.nbytes for file in self.files)

    def write(self, path: Path) -> None:
        """Write the manifest, atomically."""
        folder = path.parent
        files = [
            {
                "path": file.path.name if file.path.parent == folder else str(file.path),
                "nbytes": file.nbytes,
                "sha256": file.sha256,
            }
            for file in self.files
        ]
        record = {"format": FORMAT, "name": self.name, "source": self.source, "key": self.key, "asked": self.asked}
        write_paths(path, json.dumps({**record, "files": files}, indent=2, ensure_ascii=False) + "\n")


def manifest_file_name(name: str) -> str:
    """The file name of a model's manifest: the model's name, with characters invalid in file names replaced."""
    return f"{name.replace('/', '%2F').replace(':', '%3A')}.json"


def read_manifest(path: Path) -> Manifest | None:
    """The manifest in a file; None if it contains none."""
    try:
        if path.stat().st_size > MANIFEST_CAP_BYTES:
            return None
        record = json.loads(path_text(path.read_bytes()))
        files = tuple(
            ModelFile(path.parent / str(file["path"]), int(file["nbytes"]), file["sha256"] and str(file["sha256"]))
            for file in record["files"]
        )
        if record["format"] != FORMAT or not files or manifest_file_name(record["name"]) != path.name:
            return None
        return Manifest(record["name"], str(record["source"]), str(record["key"]), str(record["asked"]), files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def write_text(path: Path, text: str) -> None:
    """Write a small file so that readers see either the old or the new content, never half of it.

    Raises ValueError for text that is not valid UTF-8.
    """
    _write(path, text.encode("utf-8"))


def write_paths(path: Path, text: str) -> None:
    """The same for text with paths, whose names may contain any bytes; `path_text` reads it."""
    _write(path, path_bytes(text))


def _write(path: Path, content: bytes) -> None:
    fresh = temporary_path(path)
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


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
