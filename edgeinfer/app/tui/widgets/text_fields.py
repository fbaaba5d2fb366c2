"""Text fields that take every sign of a text that is typed, also those that are invisible by themselves.

In: keys. Out: Textual's own messages. Textual leaves out what does not print, and with it the joiners inside an emoji
of several people, or inside words of Persian and Hindi: the rest would be other signs.
"""

from __future__ import annotations

from textual import events
from textual.widgets import Input, TextArea

JOINERS = frozenset("\u200c\u200d")


class Field(Input):
    """A line."""

    async def _on_key(self, event: events.Key) -> None:
        if event.character in JOINERS:
            event.stop()
            event.prevent_default()
            self.insert_text_at_cursor(event.character)


class Area(TextArea):
    """Several lines."""

    async def _on_key(self, event: events.Key) -> None:
        if event.character in JOINERS and not self.read_only:
            event.stop()
            event.prevent_default()
            self.insert(event.character)
