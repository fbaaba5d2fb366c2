"""The store of saved chats: sessions and their messages, in one SQLite file.

In: messages. Out: records. Every write is on disk when its call returns. Calls may come from several threads and are
serialised; several programs may have the file open. Deleting only hides a chat until it is purged. Knows no terminal.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from edgeinfer.app.sessions.database import (
    DamagedChats,
    give_back_space,
    is_alive,
    open_database,
    this_process,
    told,
    transaction,
)
from edgeinfer.app.sessions.kept_images import KeptImage
from edgeinfer.app.sessions.records import (
    HITS,
    Attachment,
    Figures,
    Hit,
    KeptMedium,
    KeptMessage,
    KeptSession,
    Role,
    State,
    ToolRound,
    attachments_text,
    figures_text,
    hit_of,
    image_of,
    match_of,
    media_in,
    message_of,
    rounds_text,
    session_of,
    sound_of,
)
from edgeinfer.app.sessions.written_beside import WrittenBeside, beside_text
from edgeinfer.errors import SessionsFailed

TITLE_CHARACTERS = 60
SESSION = """
SELECT number, title, system, model, leaf, created_s, changed_s, deleted_s,
       (SELECT count(*) FROM messages WHERE session = sessions.number) AS n_messages FROM sessions
"""
"""Columns by their names, here and below: SQLite then tells a missing one before a row is read."""
MESSAGE = """
SELECT number, session, parent, role, text, state, created_s, model, figures, attachments, rounds, beside FROM messages
"""

NEXT_TURN = "(SELECT coalesce(max(turn), 0) + 1 FROM sessions)"
"""The place of a change after all others."""

IMAGES_OF_SESSION = """
SELECT digest, width, height, preview_width, preview, data FROM images WHERE digest IN (
    SELECT digest FROM message_images JOIN messages ON messages.number = message_images.message WHERE session = ?
)
"""
SOUNDS_OF_SESSION = """
SELECT digest, seconds, data FROM sounds WHERE digest IN (
    SELECT digest FROM message_sounds JOIN messages ON messages.number = message_sounds.message WHERE session = ?
)
"""


def default_path() -> Path:
    """Default path of the database: in $EDGEINFER_HOME, else in the platform's user data folder."""
    from edgeinfer.models.store_files import default_root

    return default_root().parent / "chats.db"


class SessionStore:
    """Use as a context manager or call `close`. `clock` returns seconds since the epoch."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._connection = open_database(path)
        try:
            self._end_broken_answers()
        except BaseException:  # for example a file that lacks a column; an open connection would lock it
            self.close()
            raise

    @functools.cached_property
    def _writer(self) -> str:
        return this_process()

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called twice."""
        with self._lock:
            self._connection.close()

    def create(self, system: str | None, model: str | None) -> KeptSession:
        """Create an empty session."""
        with self._used() as connection:
            now = self._clock()
            found = connection.execute(
                f"INSERT INTO sessions (system, model, created_s, changed_s, turn) VALUES (?, ?, ?, ?, {NEXT_TURN})",
                (_written(system), _written(model), now, now),
            )
            return self._session(connection, found.lastrowid or 0)

    def session(self, number: int) -> KeptSession:
        """Return a session, even a deleted one. Raises SessionsFailed if there is none."""
        with self._used() as connection:
            return self._session(connection, number)

    def sessions(self, limit: int = 1000) -> tuple[KeptSession, ...]:
        """Sessions that are not deleted, most recently changed first."""
        with self._used() as connection:
            rows = connection.execute(
                f"{SESSION} WHERE deleted_s IS NULL ORDER BY turn DESC, number DESC LIMIT ?", (limit,)
            )
            return tuple(map(session_of, rows))

    def rename(self, number: int, title: str) -> None:
        """Set a session's title; "" restores the default, taken from its first question."""
        title = " ".join(_writable(title).split())
        with self._used() as connection:
            first = connection.execute(
                "SELECT text FROM messages WHERE session = ? AND role = 'user' ORDER BY number LIMIT 1", (number,)
            ).fetchone()
            shown = title or (title_of(first["text"]) if first is not None else "")
            connection.execute(
                "UPDATE sessions SET title = ?, named = ? WHERE number = ?", (shown, bool(title), number)
            )

    def delete(self, number: int) -> None:
        """Hide a session; `undelete` restores it."""
        self._write("UPDATE sessions SET deleted_s = ? WHERE number = ?", self._clock(), number)

    def undelete(self, number: int) -> None:
        """Restore a deleted session."""
        self._write("UPDATE sessions SET deleted_s = NULL WHERE number = ?", number)

    def purge(self, older_than_s: float) -> int:
        """Permanently remove sessions deleted at least `older_than_s` seconds ago. Returns how many."""
        with self._used() as connection:
            n_removed = connection.execute(
                "DELETE FROM sessions WHERE deleted_s IS NOT NULL AND deleted_s <= ?", (self._clock() - older_than_s,)
            ).rowcount
            if n_removed:
                give_back_space(connection)
            return n_removed

    def set_leaf(self, number: int, leaf: int | None) -> None:
        """Record which branch is displayed, by its last message."""
        self._write("UPDATE sessions SET leaf = ? WHERE number = ?", leaf, number)

    def set_system(self, number: int, system: str | None) -> None:
        """Change the system prompt."""
        self._write("UPDATE sessions SET system = ? WHERE number = ?", _written(system), number)

    def set_model(self, number: int, model: str | None) -> None:
        """Record which model answers."""
        self._write("UPDATE sessions SET model = ? WHERE number = ?", _written(model), number)

    def add(
        self,
        session: int,
        parent: int | None,
        role: Role,
        text: str,
        *,
        state: State = "whole",
        model: str | None = None,
        figures: Figures | None = None,
        attachments: Sequence[Attachment] = (),
        rounds: Sequence[ToolRound] = (),
        beside: WrittenBeside | None = None,
    ) -> KeptMessage:
        """Add a message after `parent` and make it the end of the displayed branch."""
        now = self._clock()
        writer = self._writer if state == "writing" else None
        message = KeptMessage(
            0, session, parent, role, text, state, now, model, figures, tuple(attachments), tuple(rounds), beside
        )
        with self._used() as connection, transaction(connection):
            number = _insert(connection, message, writer)
            connection.execute(
                f"UPDATE sessions SET leaf = ?, changed_s = ?, turn = {NEXT_TURN}, model = coalesce(?, model) "
                "WHERE number = ?",
                (number, now, _written(model), session),
            )
            if role == "user":
                connection.execute(
                    "UPDATE sessions SET title = ? WHERE number = ? AND title = '' AND NOT named",
                    (_writable(_first_title([message])), session),
                )
            row = connection.execute(f"{MESSAGE} WHERE number = ?", (number,)).fetchone()
            if row is None:
                raise DamagedChats("a message that was just written is not there")
            return message_of(row, media_in(message.attachments))

    def add_chat(self, session: KeptSession, messages: Sequence[KeptMessage]) -> int:
        """Add a whole chat from elsewhere, or nothing. Returns its number in this store.

        Messages get new numbers: those given only identify parents and the leaf. Parents must precede their children.
        """
        title = session.title or _first_title(messages)
        with self._used() as connection, transaction(connection):
            number = connection.execute(
                "INSERT INTO sessions (named, system, model, created_s, changed_s, turn) "
                f"VALUES (?, ?, ?, ?, ?, {NEXT_TURN})",
                (
                    bool(session.title),
                    _written(session.system),
                    _written(session.model),
                    session.created_s,
                    self._clock(),
                ),
            ).lastrowid
            assert number is not None
            numbers: dict[int | None, int | None] = {None: None}
            for one in messages:
                numbers[one.number] = _insert(connection, replace(one, session=number, parent=numbers[one.parent]))
            leaf = numbers.get(session.leaf)
            values = (_writable(title), leaf, number)
            connection.execute("UPDATE sessions SET title = ?, leaf = ? WHERE number = ?", values)
            return number

    def write_text(self, message: int, text: str, state: State) -> None:
        """Save the current text of an answer."""
        writer = self._writer if state == "writing" else None
        self._write(
            "UPDATE messages SET text = ?, state = ?, writer = ? WHERE number = ?",
            _writable(text),
            state,
            writer,
            message,
        )

    def write_rounds(self, message: int, rounds: Sequence[ToolRound]) -> None:
        """Save the calls of tools that an answer has made so far."""
        self._write("UPDATE messages SET rounds = ? WHERE number = ?", rounds_text(rounds), message)

    def finish(
        self,
        message: int,
        text: str,
        state: State,
        figures: Figures | None,
        beside: WrittenBeside | None = None,
    ) -> None:
        """Save the final text, state and figures of an answer, and how it was written beside others."""
        with self._used() as connection, transaction(connection):
            connection.execute(
                "UPDATE messages SET text = ?, state = ?, figures = ?, beside = ?, writer = NULL WHERE number = ?",
                (_writable(text), state, figures_text(figures), beside_text(beside), message),
            )
            connection.execute(
                f"UPDATE sessions SET changed_s = ?, turn = {NEXT_TURN} "
                "WHERE number = (SELECT session FROM messages WHERE number = ?)",
                (self._clock(), message),
            )

    def messages(self, session: int) -> tuple[KeptMessage, ...]:
        """All messages of a session, in all branches, in order of creation."""
        with self._used() as connection:
            media: dict[str, KeptMedium] = {}
            for row in connection.execute(IMAGES_OF_SESSION, (session,)):
                media[row["digest"]] = image_of(row)
            for row in connection.execute(SOUNDS_OF_SESSION, (session,)):
                media[row["digest"]] = sound_of(row)
            rows = connection.execute(f"{MESSAGE} WHERE session = ? ORDER BY number", (session,))
            return tuple(message_of(row, media) for row in rows)

    def search(self, query: str, limit: int = 50) -> tuple[Hit, ...]:
        """Find messages and titles that contain all words of the query, the last one as a prefix; best match first."""
        if (match := match_of(query)) is None:
            return ()
        with self._used() as connection:
            rows = connection.execute(HITS, {"match": match, "limit": limit})
            return tuple(map(hit_of, rows))

    def _session(self, connection: sqlite3.Connection, number: int) -> KeptSession:
        row = connection.execute(f"{SESSION} WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise SessionsFailed(f"no saved chat {number}; it was removed for good")
        return session_of(row)

    def _write(self, statement: str, *values: object) -> None:
        with self._used() as connection:
            connection.execute(statement, values)

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        with self._lock, told(self.path):
            yield self._connection

    def _end_broken_answers(self) -> None:
        """Mark answers as stopped if the process that was writing them has died."""
        with self._used() as connection:
            rows = connection.execute("SELECT number, writer FROM messages WHERE state = 'writing'").fetchall()
            for row in rows:
                if not is_alive(row["writer"]):
                    connection.execute(
                        "UPDATE messages SET state = 'stopped', writer = NULL WHERE number = ?", (row["number"],)
                    )


def title_of(text: str) -> str:
    """The first non-blank line, shortened."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_CHARACTERS else line[: TITLE_CHARACTERS - 1].rstrip() + "…"


def _first_title(messages: Sequence[KeptMessage]) -> str:
    """The title of a chat: the first line of its first question, or else the name of what was sent with it."""
    asked = next((one for one in messages if one.role == "user"), None)
    if asked is None:
        return ""
    return title_of(asked.text) or next((title_of(one.name) for one in asked.attachments), "")


def _insert(connection: sqlite3.Connection, message: KeptMessage, writer: str | None = None) -> int:
    """Insert a row into `messages`, and its images and sounds. Returns its number."""
    values = (
        message.session,
        message.parent,
        message.role,
        _writable(message.text),
        message.state,
        message.created_s,
        _written(message.model),
        figures_text(message.figures),
        attachments_text(message.attachments),
        rounds_text(message.rounds),
        beside_text(message.beside),
        writer,
    )
    number = connection.execute(
        "INSERT INTO messages (session, parent, role, text, state, created_s, model, figures, attachments, rounds, "
        "beside, writer) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        values,
    ).lastrowid
    assert number is not None
    for medium in media_in(message.attachments).values():
        _insert_medium(connection, number, medium)
    return number


def _insert_medium(connection: sqlite3.Connection, message: int, medium: KeptMedium) -> None:
    """Insert an image or a sound of a message, unless another message has it already."""
    if isinstance(medium, KeptImage):
        kind, preview = "images", medium.preview
        connection.execute(
            "INSERT OR IGNORE INTO images (digest, width, height, preview_width, preview, data) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (medium.digest, *medium.size, preview.width, preview.rgb, medium.data),
        )
    else:
        kind, values = "sounds", (medium.digest, medium.seconds, medium.data)
        connection.execute("INSERT OR IGNORE INTO sounds (digest, seconds, data) VALUES (?, ?, ?)", values)
    connection.execute(f"INSERT INTO message_{kind} (message, digest) VALUES (?, ?)", (message, medium.digest))


def _written(text: str | None) -> str | None:
    return None if text is None else _writable(text)


def _writable(text: str) -> str:
    """A text that SQLite accepts: unpaired surrogates cannot be encoded as UTF-8 and are replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
