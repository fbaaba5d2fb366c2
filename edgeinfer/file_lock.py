"""Lock files: one pull (or packing) of a model at a time, across processes.

In: the path of a lock file. Out: a context manager that holds the lock, immediately or after waiting for the current
owner. The file holds the owner's process id and start time, so a lock is taken over if its owner is gone or its process
id was reused. Does not know what the lock protects.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from edgeinfer.errors import DownloadFailed
from edgeinfer.temporary import is_alive, start_time, temporary_path

SUFFIX = ".lock"
WRITING_S = 5.0  # a lock file younger than this that cannot be read is still being written
LOOK_S = 0.1  # interval between checks of a lock that is waited for


class LockHeld(DownloadFailed):
    """The lock is held by a living process; `pid` is None if that process is not known."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


Waiting = Callable[[int | None], None]
"""Called repeatedly while waiting for a lock, with the process that holds it if known. May raise."""


class FileLock:
    """A lock file, acquired by `with` and removed afterwards.

    `waiting`: wait for the current owner and call this meanwhile. Without it a lock that is held is an error.
    """

    def __init__(self, path: Path, what: str, doing: str = "pulling", waiting: Waiting | None = None) -> None:
        self._path = path
        self._what = what
        self._doing = doing
        self._waiting = waiting

    def __enter__(self) -> FileLock:
        """Acquire the lock. Raises DownloadFailed if a living process holds it, or whatever `waiting` raises."""
        while True:
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                try:
                    self._remove_stale()
                except LockHeld as held:
                    if self._waiting is None:
                        raise
                    self._waiting(held.pid)
                    time.sleep(LOOK_S)
                continue
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump({"pid": os.getpid(), "started": start_time(os.getpid())}, file)
            except BaseException:  # disk full: an empty lock file would keep others out for a while
                self._path.unlink(missing_ok=True)
                raise
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove the lock if its owner is gone; raise LockHeld otherwise."""
        try:
            content = self._path.read_bytes()
            age_s = time.time() - self._path.stat().st_mtime
        except FileNotFoundError:
            return
        owner = _owner(content)
        if owner is None and age_s < WRITING_S:
            raise LockHeld(
                f"another process has just begun {self._doing} {self._what}; wait for it, then try again", None
            )
        if owner is not None and is_alive(*owner):
            raise LockHeld(
                f"process {owner[0]} is {self._doing} {self._what} already; wait for it to finish, or stop it and "
                "try again",
                owner[0],
            )
        aside = temporary_path(self._path)
        try:
            os.replace(self._path, aside)
        except FileNotFoundError:
            return
        if aside.read_bytes() != content:  # another process took it over between our check and our rename: hand it back
            with contextlib.suppress(OSError):
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)


def remove_stale_locks(folder: Path) -> None:
    """Remove the locks in a folder whose owners are gone."""
    for path in folder.glob(f".*{SUFFIX}"):
        with contextlib.suppress(OSError, LockHeld):
            FileLock(path, path.name)._remove_stale()


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock at a path."""
    try:
        owner = _owner(path.read_bytes())
    except OSError:
        return False
    return owner is not None and is_alive(*owner)


def _owner(content: bytes) -> tuple[int, float] | None:
    try:
        record = json.loads(content)
        return int(record["pid"]), float(record["started"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
