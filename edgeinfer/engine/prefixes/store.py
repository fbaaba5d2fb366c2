"""The prefixes of one model on disk: runs of pages, found by keys alone, and checkpoints.

In: names of pages, bytes. Out: files of a folder. A file of pages holds a run of consecutive pages and is named by the
first one's key: where it ends, or a text leaves it, the rest of a text is in a file named by the next key. Of the page
at which a text leaves a file, it has the first tokens. A checkpoint is what is needed besides pages to continue after a
page, by whose key it is named. Files are readable by the user alone, of a limited size in all, the least recently used
deleted first. Other processes may use the folder at the same time. What is damaged is deleted, and what cannot be
written is not there: nothing here fails. Knows no tensors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from edgeinfer.engine.prefixes.folders import CHECKPOINT, PAGES, delete, files_in, is_nearly_full
from edgeinfer.engine.prefixes.keys import key_of, words_of
from edgeinfer.engine.prefixes.parts_file import (
    DamagedFile,
    PartsFile,
    parts_start,
    rounded_up,
    write_parts,
)
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.private_files import private_folder

T = TypeVar("T")

LARGEST_SHARE = 0.5
"""Largest share of the space for one text."""
MOST_FILES = 64
"""Most files that are opened for one text; a text in so many is written again as one."""


@dataclass(slots=True)
class FoundPages:
    """Pages of the beginning of a text, in order: a file and the page's number in it. Close it, or use `with`.

    `next_page`: the page that follows in the last file, of which the text has the first `n_next` tokens.
    """

    files: list[PartsFile] = field(default_factory=list)
    pages: list[tuple[PartsFile, int]] = field(default_factory=list)
    next_page: tuple[PartsFile, int] | None = None
    n_next: int = 0

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def is_scattered(self) -> bool:
        """Whether there are so many files that there may be more."""
        return len(self.files) >= MOST_FILES

    def __enter__(self) -> FoundPages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        for file in self.files:
            file.close()


class PrefixStore:
    """The prefixes in a folder, which may take `cap_bytes` together with those of other models beside it."""

    def __init__(self, folder: Path, cap_bytes: int, page_bytes: int) -> None:
        self._folder, self._cap_bytes, self._page_bytes = folder, cap_bytes, page_bytes

    def find(self, keys: Sequence[str], parts: Sequence[Sequence[int]] = ()) -> FoundPages:
        """The pages that are there of a text with these keys, from its beginning on. Counts as use of them.

        `parts`: its pages as `words`, also of a last one that is not whole and has no key.
        """
        found = FoundPages()
        while len(found) < len(keys) and not found.is_scattered:
            file = self._opened(keys[len(found)] + PAGES)
            if file is None:
                break
            found.files.append(file)
            n_same = _n_same(file.names, keys[len(found) :])
            if not n_same or any(file.size(number) != self._page_bytes for number in range(len(file.names))):
                file.is_unwanted = True
                delete(file.path)
                break
            found.pages += [(file, number) for number in range(n_same)]
            if n_same < len(file.names) and len(found) < len(parts):
                n_next = n_common(words_of(file.names[n_same]), list(parts[len(found)]))
                found.next_page, found.n_next = (file, n_same), n_next
            else:
                found.next_page, found.n_next = None, 0
        for file in reversed(found.files):  # what comes first is used last, and outlives what follows it
            _touch(file.path)
        return found

    def verified(self, contents: Iterator[T]) -> Iterator[T]:
        """Yield what is read of files; ends where one is damaged, which is deleted."""
        try:
            yield from contents
        except DamagedFile as reason:
            delete(reason.path)
        except OSError:
            return

    def has_checkpoint(self, key: str) -> bool:
        """Whether there is a checkpoint after the page with this key."""
        return (self._folder / f"{key}{CHECKPOINT}").exists()

    def checkpoint(self, key: str, n_bytes: int) -> PartsFile | None:
        """The file, to be closed, whose only part is the checkpoint after the page with this key. Counts as use of it.

        None unless it is there with so many bytes.
        """
        file = self._opened(key + CHECKPOINT)
        if file is None:
            return None
        if file.names == [key] and file.size(0) == n_bytes:
            _touch(file.path)
            return file
        file.close()
        delete(file.path)
        return None

    def write_pages(self, names: Sequence[str], pages: Iterable[memoryview]) -> bool:
        """Write a run of pages, fewer if fewer come; returns whether that went well."""
        names = names[: int(self._cap_bytes * LARGEST_SHARE) // rounded_up(max(1, self._page_bytes))]
        n_bytes = len(names) * rounded_up(self._page_bytes)
        return bool(names) and self._write(f"{key_of(names[0])}{PAGES}", names, pages, n_bytes)

    def write_checkpoint(self, key: str, content: memoryview) -> bool:
        """Write the checkpoint after the page with this key; returns whether that went well."""
        n_bytes = rounded_up(len(content))
        fits = n_bytes <= self._cap_bytes * LARGEST_SHARE
        return fits and self._write(f"{key}{CHECKPOINT}", [key], [content], n_bytes)

    def _write(self, name: str, names: Sequence[str], parts: Iterable[memoryview], n_bytes: int) -> bool:
        try:
            private_folder(self._folder)
            n_bytes += parts_start(names)
            if is_nearly_full(self._folder, n_bytes):
                return False
            self._make_room(n_bytes)
            limited = (part for part, _ in zip(parts, names, strict=False))
            return write_parts(self._folder / name, names, limited) > 0
        except OSError:
            return False

    def _make_room(self, n_bytes: int) -> None:
        """Delete the least recently used files of all models until so many more bytes are within the cap."""
        files = sorted(files_in(self._folder.parent), key=lambda each: each.used_ns)
        left = sum(each.n_bytes for each in files) + n_bytes
        for each in files:
            if left <= self._cap_bytes:
                return
            if delete(each.path):
                left -= each.n_bytes

    def _opened(self, name: str) -> PartsFile | None:
        """The file of this name if it is there and its header is intact; else it is deleted."""
        path = self._folder / name
        try:
            return PartsFile(path)
        except DamagedFile:
            delete(path)
        except OSError:
            pass
        return None


def _n_same(names: Sequence[str], keys: Sequence[str]) -> int:
    """How many pages with these names a text with these keys has, from the first on."""
    pairs = enumerate(zip(names, keys, strict=False))
    return next((place for place, (name, key) in pairs if key_of(name) != key), min(len(names), len(keys)))


def _touch(path: Path) -> None:
    now_ns = time.time_ns()
    with suppress(OSError):
        os.utime(path, ns=(now_ns, now_ns))
