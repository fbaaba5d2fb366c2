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

from edgeinfer.private_files import readable_folder

SLACK_S = 5.0
"""Difference between two start times of one process: some are rounded, and some systems derive them from the clock."""
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
    """When a process began, in seconds: a number that stays the same when the clock is set. Raises OSError.

    On Linux since the start of the system, which has a number of its own: with a process id, nothing else has the same.
    """
    if sys.platform == "linux":
        return _boot() + float(_status(pid)[19]) / os.sysconf("SC_CLK_TCK")
    return _start_and_end(pid)[0]


def is_alive(pid: int, started_s: float) -> bool:
    """Whether the process that began then still runs (the process id alone may have been reused).

    One that has ended and that its parent has not yet asked for does not: in a container, nobody may ever ask.
    """
    try:
        has_ended = _status(pid)[0] in (b"Z", b"X") if sys.platform == "linux" else _start_and_end(pid)[1]
        return not has_ended and abs(start_time(pid) - started_s) < SLACK_S
    except PermissionError:
        return True
    except (OSError, ValueError, OverflowError, IndexError):
        return False


def _status(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: the state comes first, the start in ticks is the twentieth."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _start_and_end(pid: int) -> tuple[float, bool]:
    """When a process began, by the clock, and whether it has ended, by other systems. Raises OSError."""
    import psutil

    try:
        process = psutil.Process(pid)
        return float(process.create_time()), process.status() == psutil.STATUS_ZOMBIE
    except psutil.AccessDenied as reason:
        raise PermissionError(str(reason)) from None
    except psutil.Error as reason:
        raise ProcessLookupError(str(reason)) from None


@functools.cache
def _boot() -> int:
    """A number of the system's start; 0 if it is not told."""
    try:
        return int(Path("/proc/sys/kernel/random/boot_id").read_text()[:8], 16)
    except (OSError, ValueError):
        return 0


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
        readable_folder(path.parent)
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
