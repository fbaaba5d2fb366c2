"""Chats as this program exports them, and how their import refuses others."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgeinfer.app.sessions import importing
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import EdgeInferError


def exported(suffix: str) -> bytes:
    """A chat with two answers to one question and an attached text, as a file of this kind."""
    with tempfile.TemporaryDirectory() as name, SessionStore(Path(name) / "chats.db") as store:
        chat = Chat(store)
        chat.ask("What is this?", [Attachment("a.txt", "some text")], None)
        answer = chat.branch[-1]
        chat.finish(answer.number, "It is **a text**.\n\n```\ncode\n```", "whole", None)
        path = Path(name) / f"chat{suffix}"
        assert chat.number is not None
        export_chat(store, chat.number, path)
        return path.read_bytes()


@contextmanager
def refused() -> Iterator[None]:
    """Name the import's own refusals, those that it words itself, as such."""
    try:
        yield
    except ValueError as error:
        if Path(traceback.extract_tb(error.__traceback__)[-1].filename) != Path(importing.__file__):
            raise
        raise EdgeInferError(str(error)) from None
