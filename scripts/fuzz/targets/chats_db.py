"""The database of saved chats: opened, listed, searched, read, exported and written to; a damaged file stays there."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from json_changes import changed
from mutation import mutated as mutated_bytes
from scratch import scratch

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import messages_of
from edgeinfer.app.sessions.exporting import json_text, markdown_text, shown_branch
from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.records import Attachment, Figures, MadeCall, ToolRound
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import SessionsFailed

LONGEST_BYTES = 1 << 17
PAGE_BYTES = 512
FOLDER = scratch()
COLUMNS = {
    "messages": ("parent", "role", "text", "state", "created_s", "model", "figures", "attachments", "rounds", "writer"),
    "sessions": ("title", "named", "system", "model", "leaf", "created_s", "changed_s", "deleted_s"),
    "images": ("digest", "width", "height", "preview_width", "preview", "data"),
}
VALUES = (None, 0, -1, 1.5, 2**62, "", "x", "1e999", b"\xff\x00", "9" * 30, "user", "\x1b[2J", float("inf"))


def seeds() -> list[bytes]:
    """One with two chats: branches, an attached text and image, calls, figures."""
    path = FOLDER / "seed.db"
    with sqlite3.connect(path) as empty:
        empty.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        empty.execute("VACUUM")
    empty.close()
    image = kept_image(_picture(), "a.png")
    with SessionStore(path) as store:
        for number in range(2):
            chat = Chat(store, system="Be brief.")
            chat.ask("What is this?", [Attachment("a.txt", "some text"), Attachment.of_medium("a.png", image)], "m")
            answer = chat.branch[-1]
            store.write_rounds(answer.number, [ToolRound("t", (MadeCall("f", "{}", "1"),), "hm")])
            chat.finish(answer.number, "It is **a text**.\n\n```\ncode\n```", "whole", Figures(3, 0, number, "stop"))
    with sqlite3.connect(path) as whole:
        whole.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        whole.execute("PRAGMA journal_mode = DELETE")
    whole.close()
    return [path.read_bytes()]


def _picture() -> bytes:
    from io import BytesIO

    from PIL import Image

    kept = BytesIO()
    Image.new("RGB", (8, 6), "red").save(kept, "PNG")
    return kept.getvalue()


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A file with changed bytes, or a sound one with odd values in its columns."""
    if rng.random() < 0.5:
        return mutated_bytes(seeds, rng, LONGEST_BYTES)
    path = FOLDER / "mutated.db"
    path.write_bytes(rng.choice(seeds))
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        for _ in range(rng.choice((1, 2, 3))):
            table = rng.choice(tuple(COLUMNS))
            column = rng.choice(COLUMNS[table])
            value = changed([["a", "b"], {"calls": [], "n_prompt": 1}], rng).decode("utf-8", "replace")
            chosen = rng.choice((*VALUES, value, value, value))
            statement = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid % 2 = ?"
            with suppress(sqlite3.Error, OverflowError):
                connection.execute(statement, (chosen, rng.randrange(2)))
    finally:
        connection.close()
    return path.read_bytes()


def run(data: bytes) -> None:
    """Do with it what the app does."""
    path = FOLDER / "chats.db"
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(data)
    try:
        _use(path)
    except SessionsFailed:
        assert path.stat().st_size >= len(data) // 2, "the damaged file is gone"
        raise


def _use(path: Path) -> None:
    with SessionStore(path) as store:
        for session in store.sessions():
            chat, messages = Chat(store, session), store.messages(session.number)
            messages_of(chat.branch, chat.system)
            json_text(session, messages)
            markdown_text(session, shown_branch(session, messages))
            chat.ask("And?", [], None)
        store.search("text co")
        store.purge(0)
