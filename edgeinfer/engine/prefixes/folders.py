"""The folders of prefixes on disk: where they are, how large, and how they are deleted.

In: fingerprints of models. Out: paths and sizes. Knows nothing of what the files hold, and loads no numpy.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.offload.bundle_file import FINGERPRINT_DIGITS, bundles_folder
from edgeinfer.temporary import remove_leftovers

PAGES, CHECKPOINT = ".pages", ".checkpoint"
"""Suffixes of files of prefixes."""


FREE_SHARE_MIN, FREE_BYTES_MIN = 0.05, 5_000_000_000
"""Share of the disk that is left free, or so many bytes of a large one."""


def is_nearly_full(folder: Path, n_bytes: int) -> bool:
    """Whether so many bytes more would leave too little of the disk free. Raises OSError."""
    disk = shutil.disk_usage(folder)
    return disk.free - n_bytes < min(disk.total * FREE_SHARE_MIN, FREE_BYTES_MIN)


def prefixes_folder() -> Path:
    """The folder of all models' prefixes, beside the bundle files."""
    return bundles_folder().with_name("prefixes")


def folder_of(fingerprint: str) -> Path:
    """The folder of one model's prefixes."""
    return prefixes_folder() / fingerprint[:FINGERPRINT_DIGITS]


def n_bytes_kept(folder: Path | None = None) -> int:
    """Bytes of all prefixes, or of those in a folder."""
    return sum(each.n_bytes for each in files_in(folder or prefixes_folder()))


def clear_prefixes(folder: Path | None = None) -> int:
    """Delete all prefixes, or those in a folder; returns the bytes freed."""
    folder = folder or prefixes_folder()
    freed = sum(each.n_bytes for each in files_in(folder) if delete(each.path))
    with suppress(OSError):
        for path in (*folder.iterdir(), folder):
            remove_leftovers(path)
            with suppress(OSError):
                path.rmdir()
    return freed


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """A file of a prefix: its size, and when it was last used."""

    path: Path
    n_bytes: int
    used_ns: int


def files_in(folder: Path) -> list[PrefixFile]:
    """All files of prefixes in a folder and its folders."""
    found = []
    for path in folder.rglob("*"):
        if path.suffix in (PAGES, CHECKPOINT):
            with suppress(OSError):
                status = path.stat()
                found.append(PrefixFile(path, status.st_size, status.st_mtime_ns))
    return found


def delete(path: Path) -> bool:
    """Delete a file; returns whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
