"""The database file of saved chats: opens it, brings its tables up to date, puts SQLite's errors in readable words.

In: a path, or IN_MEMORY. Out: a connection that threads may share, one at a time, with the tables of this version.
Several programs may have the file open: with SQLite's write-ahead log they can read while one of them writes briefly. A
released migration step is never changed; add a new one instead. Knows no records.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeinfer import temporary
from edgeinfer.app.sessions.columns import decoded
from edgeinfer.errors import SessionsFailed, SessionsUnwritable
from edgeinfer.private_files import readable_folder

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
            connection.row_factory, connection.text_factory = sqlite3.Row, decoded
            connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
            _use_log(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")  # what is removed is overwritten
            migrate(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _make(path: Path) -> None:
    """Create the file if needed and check the free space. Raises SessionsUnwritable."""
    try:
        readable_folder(path.parent)
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
    except (UnicodeDecodeError, DamagedChats) as error:  # SQLite's own message of texts quotes what a file holds
        raise SessionsFailed(f"{path}: {_damaged(error, path)}") from None
    except MemoryError:  # SQLite also asks for any size that a damaged index of words names
        reason = f"too little memory for it, or it is damaged; then move it away: mv {path} {path}.damaged"
        raise SessionsFailed(f"{path}: {reason}") from None
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
        with suppress(sqlite3.Error):  # SQLite has already rolled back where a disk is full or errs
            connection.execute("ROLLBACK")
        raise


def _code(error: sqlite3.Error) -> int:
    return (error.sqlite_errorcode if hasattr(error, "sqlite_errorcode") else 0) & 0xFF


def _in_words(error: sqlite3.Error, path: Path) -> str:
    code = _code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith("no such "):  # a column
        return _damaged(error, path)
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


def _damaged(error: Exception, path: Path) -> str:
    return f"not a file of saved chats, or damaged ({error}); move it away to begin a new one: mv {path} {path}.damaged"


SPARE_BYTES = 32 << 20
"""Free space in the file from which it is given back to the disk, if it is most of the file."""


def give_back_space(connection: sqlite3.Connection) -> None:
    """Make the file smaller if most of it is free; does nothing while another program uses it."""
    n_free, n_pages, page_bytes = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count", "page_size")
    )
    if n_free * page_bytes > SPARE_BYTES and 2 * n_free > n_pages:
        with suppress(sqlite3.Error):
            connection.execute("VACUUM")


def this_process() -> str:
    """Identifies this process by pid and start time, because pids are reused."""
    return f"{os.getpid()}@{temporary.start_time(os.getpid()):.2f}"


def is_alive(writer: str | None) -> bool:
    """Whether the process identified by `writer` is still running; one that only its parent remembers is not."""
    number, _, started = (writer or "").partition("@")
    try:
        return temporary.is_alive(int(number), float(started))
    except ValueError:
        return False


FIRST = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    title TEXT NOT NULL DEFAULT '',
    named INTEGER NOT NULL DEFAULT 0,
    system TEXT,
    model TEXT,
    leaf INTEGER,
    created_s REAL NOT NULL,
    changed_s REAL NOT NULL,
    deleted_s REAL
);
CREATE TABLE messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES sessions (number) ON DELETE CASCADE,
    parent INTEGER REFERENCES messages (number) ON DELETE CASCADE,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    state TEXT NOT NULL,
    created_s REAL NOT NULL,
    model TEXT,
    figures TEXT,
    attachments TEXT,
    writer TEXT
);
CREATE INDEX messages_of_session ON messages (session, number);
CREATE INDEX children_of_message ON messages (parent);
CREATE INDEX messages_being_written ON messages (state) WHERE state = 'writing';
CREATE INDEX sessions_by_change ON sessions (changed_s DESC) WHERE deleted_s IS NULL;
CREATE VIRTUAL TABLE texts USING fts5 (
    title, question, answer, session UNINDEXED, message UNINDEXED, tokenize = "unicode61 remove_diacritics 2"
);
CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'writing' BEGIN
    INSERT INTO texts (rowid, title, question, answer, session, message) VALUES (
        new.number, '', CASE WHEN new.role = 'user' THEN new.text ELSE '' END,
        CASE WHEN new.role = 'user' THEN '' ELSE new.text END, new.session, new.number
    );
END;
CREATE TRIGGER message_changed AFTER UPDATE OF text, state ON messages WHEN new.state <> 'writing' BEGIN
    DELETE FROM texts WHERE rowid = new.number;
    INSERT INTO texts (rowid, title, question, answer, session, message) VALUES (
        new.number, '', CASE WHEN new.role = 'user' THEN new.text ELSE '' END,
        CASE WHEN new.role = 'user' THEN '' ELSE new.text END, new.session, new.number
    );
END;
CREATE TRIGGER message_deleted AFTER DELETE ON messages BEGIN
    DELETE FROM texts WHERE rowid = old.number;
END;
CREATE TRIGGER session_named AFTER UPDATE OF title ON sessions BEGIN
    DELETE FROM texts WHERE rowid = -new.number;
    INSERT INTO texts (rowid, title, question, answer, session, message)
    VALUES (-new.number, new.title, '', '', new.number, NULL);
END;
CREATE TRIGGER session_deleted AFTER DELETE ON sessions BEGIN
    DELETE FROM texts WHERE rowid = -old.number;
END;
"""

ROUNDS = """
ALTER TABLE messages ADD COLUMN rounds TEXT;
"""

BESIDE = """
ALTER TABLE messages ADD COLUMN beside TEXT;
"""

IMAGES = """
CREATE TABLE images (
    digest TEXT PRIMARY KEY,
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    preview_width INTEGER NOT NULL,
    preview BLOB NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE message_images (
    message INTEGER NOT NULL REFERENCES messages (number) ON DELETE CASCADE,
    digest TEXT NOT NULL REFERENCES images (digest),
    PRIMARY KEY (message, digest)
);
CREATE INDEX messages_of_image ON message_images (digest);
CREATE TRIGGER image_released AFTER DELETE ON message_images
WHEN NOT EXISTS (SELECT 1 FROM message_images WHERE digest = old.digest) BEGIN
    DELETE FROM images WHERE digest = old.digest;
END;
"""

SOUNDS = """
CREATE TABLE sounds (
    digest TEXT PRIMARY KEY,
    seconds REAL NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE message_sounds (
    message INTEGER NOT NULL REFERENCES messages (number) ON DELETE CASCADE,
    digest TEXT NOT NULL REFERENCES sounds (digest),
    PRIMARY KEY (message, digest)
);
CREATE INDEX messages_of_sound ON message_sounds (digest);
CREATE TRIGGER sound_released AFTER DELETE ON message_sounds
WHEN NOT EXISTS (SELECT 1 FROM message_sounds WHERE digest = old.digest) BEGIN
    DELETE FROM sounds WHERE digest = old.digest;
END;
"""

TURNS = """
ALTER TABLE sessions ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET turn = (
    SELECT earlier FROM (SELECT number AS of, row_number() OVER (ORDER BY changed_s, number) AS earlier FROM sessions)
    WHERE of = sessions.number
);
DROP INDEX sessions_by_change;
CREATE INDEX sessions_by_turn ON sessions (turn DESC) WHERE deleted_s IS NULL;
"""
"""The order of changes, which stays when the clock is set."""

STEPS: tuple[str, ...] = (FIRST, ROUNDS, IMAGES, SOUNDS, BESIDE, TURNS)
"""SQL for the steps from version 0 to 1, from 1 to 2, …"""


class NewerVersion(Exception):
    """The file was written by a later version of edgeinfer."""


class DamagedChats(Exception):
    """What is in the file cannot be what edgeinfer wrote; says what."""


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the tables to this version, each step in a transaction.

    Raises NewerVersion, DamagedChats, sqlite3.Error.
    """
    version = _version(connection)
    if version > len(STEPS):
        raise NewerVersion
    while version < len(STEPS):
        with transaction(connection):
            version = _version(connection)  # another instance may have migrated meanwhile
            if version < len(STEPS):
                for statement in _statements(STEPS[version]):
                    connection.execute(statement)
                version += 1
                connection.execute(f"PRAGMA user_version = {version}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < 0:
        raise DamagedChats(f"version {version}")
    return int(version)


def _statements(script: str) -> list[str]:
    """Split a script into statements, because `executescript` would commit the open transaction."""
    found, begun = [], ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            found.append(begun)
            begun = ""
    return found
