"""A one-line prompt for a text, such as a title or a path.

In: a label, the initial text. Out: `Entered`, or `Left` if cancelled with Escape. Hidden when not in use.
"""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from edgeinfer.app.answer_output import harmless
from edgeinfer.app.tui.widgets.text_fields import Field


class EntryLine(Horizontal):
    """A label and a text field."""

    DEFAULT_CSS = """
    EntryLine { display: none; height: 1; background: $surface; }
    EntryLine.-open { display: block; layout: horizontal; }
    EntryLine > Static { width: auto; padding: 0 1; color: $text-muted; }
    EntryLine > Input { width: 1fr; height: 1; border: none; padding: 0 1 0 0; background: $surface; }
    EntryLine > Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel", id="entry.leave")]

    class Entered(Message):
        """A text was entered."""

        def __init__(self, what: str, text: str) -> None:
            super().__init__()
            self.what = what
            self.text = text

    class Left(Message):
        """The prompt was cancelled."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asked = ""

    def compose(self) -> ComposeResult:
        """Label and field."""
        yield Static(markup=False)
        yield Field(compact=True)

    def ask(self, what: str, label: str, text: str) -> None:
        """Ask for a text; `what` is returned with it."""
        self._asked = what
        self.query_one(Static).update(f"{label}:")
        field = self.query_one(Input)
        field.value = " ".join(harmless(text).split())
        field.cursor_position = len(field.value)
        self.add_class("-open")
        field.focus()

    @property
    def is_open(self) -> bool:
        """Whether the prompt is shown."""
        return self.has_class("-open")

    def action_leave(self) -> None:
        """Cancel the prompt."""
        self.remove_class("-open")
        self.post_message(self.Left())

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.remove_class("-open")
        self.post_message(self.Entered(self._asked, event.value.strip()))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
