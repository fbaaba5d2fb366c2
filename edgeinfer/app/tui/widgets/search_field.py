"""A field for a search over a list.

In: keys. Out: `Input`'s own messages. Keys that would do nothing in it are left to the screen.
"""

from __future__ import annotations

from edgeinfer.app.tui.widgets.text_fields import Field


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
