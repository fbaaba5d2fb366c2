"""Text fields that accept joiner characters, and the search field of a list.

In: keys. Out: Textual's own messages. Textual drops non-printing characters, including the joiners inside multi-person
emoji and inside Persian and Hindi words.
"""

from __future__ import annotations

from textual import events
from textual.widgets import Input, TextArea

JOINERS = frozenset("\u200c\u200d")


class Field(Input):
    """A single-line field."""

    async def _on_key(self, event: events.Key) -> None:
        if event.character in JOINERS:
            event.stop()
            event.prevent_default()
            self.insert_text_at_cursor(event.character)


class Area(TextArea):
    """A multi-line text area."""

    async def _on_key(self, event: events.Key) -> None:
        if event.character in JOINERS and not self.read_only:
            event.stop()
            event.prevent_default()
            self.insert(event.character)


class SearchField(Field):
    """A single-line field without a frame; at the end of the text, Delete acts on the list below."""

    DEFAULT_CSS = """
    SearchField { height: 1; border: none; padding: 0 1; background: $surface; }
    SearchField:focus { border: none; }
    """

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key's action is available now."""
        if action == "delete_right" and self.cursor_at_end and self.selection.is_empty:
            return False
        return super().check_action(action, parameters)
