"""One pull (or packing) of a model at a time, across processes.

In: the path of a lock file. Out: a context manager that holds it, or DownloadFailed naming the process that does. The
file holds the owner's process id and start time, so a lock whose owner is gone (or whose number was given to another
process) is taken over. Does not know what it protects.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from types import TracebackType

from edgeinfer.errors import DownloadFailed

WRITING_S = 5.0  # an unreadable lock younger than this is one being written
CLOCK_SLACK_S = 5.0  # start times are derived from the system clock, which may be set


class PullLock:
    """A lock file, taken by `with` and removed after it."""

    def __init__(self, path: Path, what: str, doing: str = "pulling") -> None:
        self._path = path
        self._what = what
        self._doing = doing

    def __enter__(self) -> PullLock:
        """Take the lock. Raises DownloadFailed when a living process holds it."""
        while True:
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                self._remove_stale()
                continue
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"pid": os.getpid(), "started": _start_time(os.getpid())}, file)
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove the lock if its owner is gone; raise DownloadFailed if it is not."""
        try:
            content = self._path.read_bytes()
            age_s = time.time() - self._path.stat().st_mtime
        except FileNotFoundError:
            return
        owner = _owner(content)
        if owner is None and age_s < WRITING_S:
            raise DownloadFailed(
                f"another process has just begun {self._doing} {self._what}; wait for it, then try again"
            )
        if owner is not None and _alive(*owner):
            raise DownloadFailed(
                f"process {owner[0]} is {self._doing} {self._what} already; wait for it to finish, or stop it and "
                "try again"
            )
        aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.stale")
        try:
            os.replace(self._path, aside)
        except FileNotFoundError:
            return
        if aside.read_bytes() != content:  # someone took it over between our look and our rename: hand it back
            with contextlib.suppress(OSError):
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)


def _owner(content: bytes) -> tuple[int, float] | None:
    try:
        record = json.loads(content)
        return int(record["pid"]), float(record["started"])
    except (ValueError, KeyError, TypeError):
        return None


def _start_time(pid: int) -> float:
    """When the process began, in seconds since the epoch. Raises psutil's errors."""
    import psutil

    return float(psutil.Process(pid).create_time())


def _alive(pid: int, started_s: float) -> bool:
    """Whether the process that wrote the lock still runs (its number alone may have been given to another)."""
    import psutil

    try:
        return abs(_start_time(pid) - started_s) < CLOCK_SLACK_S
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False
