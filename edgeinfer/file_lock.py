"""One pull (or packing) of a model at a time, across processes.

In: the path of a lock file. Out: a context manager that holds it, at once or after waiting for the process that does.
The file holds the owner's process id and start time, so a lock whose owner is gone (or whose number was given to
another process) is taken over. Does not know what it protects.
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
WRITING_S = 5.0  # an unreadable lock younger than this is one being written
LOOK_S = 0.1  # between two looks whether a lock that is waited for is free


class LockHeld(DownloadFailed):
    """A living process holds the lock; `pid` is None while it is not known which."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


Waiting = Callable[[int | None], None]
"""Called again and again while a lock is waited for, with the process that holds it if that is known; may raise."""


class FileLock:
    """A lock file, taken by `with` and removed after it. `waiting`: wait for whoever holds it, and call this meanwhile.

    Without `waiting` a lock that is held is an error.
    """

    def __init__(self, path: Path, what: str, doing: str = "pulling", waiting: Waiting | None = None) -> None:
        self._path = path
        self._what = what
        self._doing = doing
        self._waiting = waiting

    def __enter__(self) -> FileLock:
        """Take the lock. Raises DownloadFailed when a living process holds it, or what `waiting` raises."""
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
            except BaseException:  # a full disk: an empty lock would keep others out for a while
                self._path.unlink(missing_ok=True)
                raise
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove the lock if its owner is gone; raise LockHeld if it is not."""
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
        if aside.read_bytes() != content:  # someone took it over between our look and our rename: hand it back
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
    except (ValueError, KeyError, TypeError):
        return None
