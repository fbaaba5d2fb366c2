"""Chats that are imported from JSON."""

from __future__ import annotations

from chats import exported, refused

from edgeinfer.app.sessions.importing import chat_of_json

LISTED = b"""[{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"},
{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}, {"role": "assistant", "content":
"Hello", "reasoning_content": "A greeting", "tool_calls": [{"id": "a", "type": "function", "function":
{"name": "f", "arguments": "{\\"x\\": 1}"}}]}]"""


def seeds() -> list[bytes]:
    """A conversation as clients have it, and one as this program writes it."""
    return [LISTED, exported(".json")]


def run(data: bytes) -> None:
    """Read it."""
    with refused():
        chat_of_json(data.decode("utf-8", "replace"))
