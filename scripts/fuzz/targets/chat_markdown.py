"""Chats that are imported from Markdown."""

from __future__ import annotations

from chats import exported, refused

from edgeinfer.app.sessions.importing import chat_of_markdown


def seeds() -> list[bytes]:
    """A chat as this program writes it."""
    return [exported(".md")]


def run(data: bytes) -> None:
    """Read it."""
    with refused():
        chat_of_markdown(data.decode("utf-8", "replace"))
