"""Tables of the chat database, as numbered migration steps from one version of the file to the next.

In: an open connection. Out: the same connection, with the tables of this version. A released step is never changed;
add a new one instead. Knows no records.
"""

from __future__ import annotations

import sqlite3

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

STEPS: tuple[str, ...] = (FIRST,)
"""SQL for the steps from version 0 to 1, from 1 to 2, …"""


class NewerVersion(Exception):
    """The file was written by a later version of edgeinfer."""


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the tables to this version, each step in a transaction. Raises NewerVersion, sqlite3.Error."""
    version = _version(connection)
    if version > len(STEPS):
        raise NewerVersion
    while version < len(STEPS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection)  # another instance may have migrated meanwhile
            if version < len(STEPS):
                for statement in _statements(STEPS[version]):
                    connection.execute(statement)
                version += 1
                connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
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
