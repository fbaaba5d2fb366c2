"""Text fields that accept joiners, and the search field of a list.

In: keys. Out: Textual's own messages. Textual drops characters that do not print, and with them the joiners
inside emoji of several people and words of Persian and Hindi.
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


class SearchField(Field):
    """An `Input` of one line without a frame; Delete at the end of the text belongs to the list below."""

    DEFAULT_CSS = """
    SearchField { height: 1; border: none; padding: 0 1; background: $surface; }
    SearchField:focus { border: none; }
    """

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key's action is of use now."""
        if action == "delete_right" and self.cursor_at_end and self.selection.is_empty:
            return False
        return super().check_action(action, parameters)
