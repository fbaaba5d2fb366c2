"""Model files in another program's folder, which may contain anything: a bounded walk over names.

In: a folder. Out: the files of each model, all shards of a split model together. Files beside models, such as
projectors for images and audio (mmproj), do not count as models. Unprintable names and unreadable entries are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.models.file_names import SHARD, is_model_file, shard_names

DEPTH_CAP = 5
ENTRIES_CAP = 20_000


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one model and their total bytes."""

    paths: tuple[Path, ...]
    nbytes: int


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """The printable names in a folder; nothing if it cannot be read."""
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= ENTRIES_CAP:
                    break
                if entry.name.isprintable():
                    found.append(entry)
    except (OSError, ValueError):
        return []
    return sorted(found, key=lambda entry: entry.name)


def model_files(folder: Path) -> Iterator[FileSet]:
    """The models in a folder and below it. Links are followed; each folder is visited once."""
    seen: set[tuple[int, int]] = set()
    left = ENTRIES_CAP
    waiting = [(folder, 0)]
    while waiting and left > 0:
        place, depth = waiting.pop()
        if not _is_new(place, seen):
            continue
        entries = entries_of(place)
        left -= len(entries)
        if depth < DEPTH_CAP:
            below = [Path(entry.path) for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
            waiting += [(each, depth + 1) for each in reversed(below)]
        yield from _models_among(entries)


def _models_among(entries: list[os.DirEntry[str]]) -> Iterator[FileSet]:
    sizes = {entry.name: size for entry in entries if is_model_file(_last_two(entry)) and (size := _file_size(entry))}
    paths = {entry.name: Path(entry.path) for entry in entries}
    for name in sizes:
        shard = SHARD.fullmatch(name)
        if shard is not None and int(shard["index"]) != 1:
            continue
        names = shard_names(name)
        if all(each in sizes for each in names):
            yield FileSet(tuple(paths[each] for each in names), sum(sizes[each] for each in names))


def _last_two(entry: os.DirEntry[str]) -> str:
    """The name of a file and that of its folder."""
    return "/".join(Path(entry.path).parts[-2:])


def _file_size(entry: os.DirEntry[str]) -> int:
    """Bytes of a file; 0 for anything that is not a file, and for broken links."""
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except OSError:
        return 0


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether a folder is visited for the first time; it is then recorded as visited."""
    try:
        status = folder.stat()
    except OSError:
        return False
    key = status.st_dev, status.st_ino
    if status.st_ino and key in seen:
        return False
    seen.add(key)
    return True
