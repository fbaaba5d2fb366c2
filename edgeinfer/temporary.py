"""Temporary files and folders named after the process that owns them, so that those of killed programs can be removed.

In: folders, names. Out: unique paths, and folders cleared of leftovers. A name ends in the id and start time of its
process and says which computer the process runs on, as folders may be shared. Does not know what the files hold.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CLOCK_SLACK_S = 5.0  # start times are derived from the system clock, which may be adjusted
ABANDONED_S = 7 * 86400.0  # after this a file of another computer, whose processes cannot be checked, is abandoned
PATIENCE_S, LOOK_S = 2.0, 0.02
"""How long, and how often, a change is tried that Windows refuses because a file is open."""
NAME_CAP = 100  # characters of the original file name that are kept in the temporary name
OWNED = re.compile(r"\.tmp-(?P<host>[0-9a-f]{8})-(?P<pid>\d{1,10})-(?P<started>\d{1,12})-\w+$")


def temporary_path(path: Path) -> Path:
    """A hidden name beside `path`, for a file that replaces it once complete.

    Removes the leftovers of ended processes in that folder.
    """
    remove_leftovers(path.parent)
    return path.with_name(f".{path.name[:NAME_CAP]}{_mark()}{os.urandom(4).hex()}")


def temporary_file(path: Path) -> tuple[int, str]:
    """Create a file beside `path`, private to this user: its descriptor, open for writing, and its path."""
    remove_leftovers(path.parent)
    return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:NAME_CAP]}{_mark()}")


def temporary_folder(name: str, parent: Path | str | None = None) -> tempfile.TemporaryDirectory[str]:
    """A new folder, private to this user, for use with `with`; in `parent`, else in the system's temporary folder."""
    parent = tempfile.gettempdir() if parent is None else parent
    remove_leftovers(Path(parent))
    return tempfile.TemporaryDirectory(dir=parent, prefix=f"{name[:NAME_CAP]}{_mark()}", ignore_cleanup_errors=True)


def put_in_place(fresh: Path | str, path: Path | str) -> None:
    """Rename a complete file over `path`. Raises OSError.

    Windows refuses that while another process reads the old file, or a virus scanner the new one: it is tried again.
    """
    _insist(lambda: os.replace(fresh, path))


def remove_file(path: Path) -> None:
    """Delete a file if it is there, tried again in the same way. Raises OSError."""
    _insist(lambda: path.unlink(missing_ok=True))


def _insist(change: Callable[[], None]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            return change()
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > ends:
                raise
        time.sleep(LOOK_S)


def remove_leftovers(folder: Path) -> int:
    """Remove this user's temporary files and folders whose process has ended; return how many there were."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry, match) for entry in entries if (match := OWNED.search(entry.name))]
    except OSError:
        return 0
    return sum(_removed(entry) for entry, match in found if _is_left(entry, match))


def start_time(pid: int) -> float:
    """When the process began, in seconds since the epoch. Raises psutil's errors."""
    import psutil

    return float(psutil.Process(pid).create_time())


def is_alive(pid: int, started_s: float) -> bool:
    """Whether the process that began then still runs (the process id alone may have been reused)."""
    import psutil

    try:
        return abs(start_time(pid) - started_s) < CLOCK_SLACK_S
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def _mark() -> str:
    return _mark_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _mark_of(pid: int) -> str:
    return f".tmp-{_host()}-{pid}-{int(start_time(pid))}-"


@functools.cache
def _host() -> str:
    import hashlib  # slow to import, and needed only where a file is written

    return hashlib.sha256(platform.node().encode("utf-8", "replace")).hexdigest()[:8]


def _is_left(entry: os.DirEntry[str], match: re.Match[str]) -> bool:
    """Whether an entry belongs to this user and its owning process is gone."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return False
    if match["host"] != _host():
        return status.st_mtime < time.time() - ABANDONED_S
    return not is_alive(int(match["pid"]), float(match["started"]))


def _removed(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
        return True
    return False


def write_whole(path: Path, text: str) -> bool:
    """Write a file. Returns False if the disk or the folder does not allow it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = temporary_file(path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            put_in_place(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError:
        return False
    return True
