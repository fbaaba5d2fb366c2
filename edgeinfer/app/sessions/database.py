"""Opens the database file of saved chats and turns SQLite's errors into readable messages.

In: a path, or IN_MEMORY. Out: a connection that threads may share, one at a time. Several programs may have the file
open: with SQLite's write-ahead log they can read while one of them writes briefly. Knows no tables.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from edgeinfer.app.sessions.migrations import NewerVersion, migrate
from edgeinfer.errors import SessionsFailed, SessionsUnwritable

PATIENCE_MS = 500
"""How long a write waits for another program's lock."""
LEAST_FREE_BYTES = 1 << 20
"""Minimum free disk space: with less, the next messages could not be written."""
UNWRITABLE = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)
IN_MEMORY = Path(":memory:")
"""Used in place of a path: chats that last as long as the connection."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database, creating the file if needed, and migrate its tables to this version.

    Raises SessionsFailed, or SessionsUnwritable if the location cannot be written.
    """
    with told(path):
        if path != IN_MEMORY:
            _make(path)
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
            _use_log(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _make(path: Path) -> None:
    """Create the file if needed and check the free space. Raises SessionsUnwritable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
        free_bytes = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise SessionsUnwritable(
            f"{path} cannot be made: {error.strerror or error}; set EDGEINFER_HOME to a folder that can be written"
        ) from None
    if free_bytes < LEAST_FREE_BYTES:
        raise SessionsUnwritable(
            f"{path} cannot grow: no space left on its disk; make room there, or set EDGEINFER_HOME to a folder on "
            "another one"
        )


def _use_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. Retries while another program holds the file: SQLite does not wait here."""
    ends = time.monotonic() + PATIENCE_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(0.01)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Convert SQLite errors in the block into SessionsFailed with a message that says how to fix them."""
    try:
        yield
    except NewerVersion:
        raise SessionsFailed(
            f"{path} was written by a later version of edgeinfer; install that one, or set EDGEINFER_HOME elsewhere"
        ) from None
    except sqlite3.Error as error:
        kind = SessionsUnwritable if _code(error) in UNWRITABLE else SessionsFailed
        raise kind(f"{path}: {_in_words(error, path)}") from None


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit everything in the block, or roll all of it back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has already rolled back if the disk is full
            connection.execute("ROLLBACK")
        raise


def _code(error: sqlite3.Error) -> int:
    return (error.sqlite_errorcode if hasattr(error, "sqlite_errorcode") else 0) & 0xFF


def _in_words(error: sqlite3.Error, path: Path) -> str:
    code = _code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"not a file of saved chats, or damaged ({error}); move it away to begin a new one: "
            f"mv {path} {path}.damaged"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another program holds it locked; close that one, then try again"
    if code == sqlite3.SQLITE_CONSTRAINT:
        return "the chat was removed for good meanwhile; begin a new one"
    if code == sqlite3.SQLITE_IOERR:
        return f"the disk gives errors ({error}); see whether it is there and has room, then it goes on"
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full; make room, then it goes on"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return "it cannot be written; allow it (chmod u+w), or set EDGEINFER_HOME to a folder that can be written"
    return str(error)


SAME_S = 2.0
"""Tolerance for process start times: they are relative to boot time, which moves when the clock is adjusted."""


def this_process() -> str:
    """Identifies this process by pid and start time, because pids are reused."""
    process = psutil.Process()
    return f"{process.pid}@{process.create_time():.2f}"


def is_alive(writer: str | None) -> bool:
    """Whether the process identified by `writer` is still running."""
    if writer is None:
        return False
    number, _, started = writer.partition("@")
    try:
        found: float = psutil.Process(int(number)).create_time()
        return abs(found - float(started)) < SAME_S
    except (psutil.Error, ValueError, OverflowError):
        return False
