"""Opening the file of kept chats, and saying in words what is wrong with it.

In: a path, or IN_MEMORY. Out: a connection that several threads may use by turns. Several programs may have it open:
SQLite's write-ahead log lets them read while one writes, for a moment each. Knows no tables.
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
"""How long a write waits for another program's."""
LEAST_FREE_BYTES = 1 << 20
"""With less room than this the next messages could not be written."""
UNWRITABLE = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)
IN_MEMORY = Path(":memory:")
"""In place of a file: chats that last as long as the connection."""


def open_database(path: Path) -> sqlite3.Connection:
    """The connection, with the tables of this version; the file is made where there is none.

    Raises SessionsFailed, and SessionsUnwritable where the place takes no writing.
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
    """See that there is a file, and room to write to it. Raises SessionsUnwritable."""
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
    """Switch to the write-ahead log. SQLite does not wait for another program that is at it, so this does."""
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
    """Turn SQLite's errors within it into a SessionsFailed that says what would work."""
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
    """Everything within it is written, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has rolled it back already
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
"""The start of a process is counted from the machine's, which moves when its clock is set right."""


def this_process() -> str:
    """This process: its number and when it started, as numbers are used again."""
    process = psutil.Process()
    return f"{process.pid}@{process.create_time():.2f}"


def is_alive(writer: str | None) -> bool:
    """Whether the process that a text names still runs."""
    if writer is None:
        return False
    number, _, started = writer.partition("@")
    try:
        found: float = psutil.Process(int(number)).create_time()
        return abs(found - float(started)) < SAME_S
    except (psutil.Error, ValueError, OverflowError):
        return False
