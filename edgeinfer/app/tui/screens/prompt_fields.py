"""Asks for the fields of a saved prompt, one line each, below the prompt.

In: its name and text. Out: the text with the values in it, or None.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from edgeinfer.app.chat.personas import NamedText
from edgeinfer.app.chat.saved_prompts import fields_of, filled
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.text_fields import Field

KEYS = "Enter: next, then into the input · Escape cancels"


class PromptFieldsScreen(ModalScreen[str | None]):
    """A form at the bottom of the screen."""

    DEFAULT_CSS = """
    PromptFieldsScreen { align: center bottom; background: transparent; }
    PromptFieldsScreen > Vertical {
        width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $surface; border-top: solid $primary;
    }
    PromptFieldsScreen #prompt-text { height: auto; max-height: 30vh; color: $text-muted; }
    PromptFieldsScreen #prompt-fields { height: auto; max-height: 50vh; }
    PromptFieldsScreen Static { height: auto; }
    PromptFieldsScreen Field { height: 1; padding: 0 1; &, &:focus { border: none; } }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back", id="fields.back")]

    def __init__(self, prompt: NamedText) -> None:
        super().__init__()
        self._prompt = prompt
        self._fields = fields_of(prompt.text)

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(neutral(f"{self._prompt.name}:"), markup=False)
            with VerticalScroll(id="prompt-text", can_focus=False):
                yield Static(neutral(self._prompt.text), markup=False)
            with VerticalScroll(id="prompt-fields", can_focus=False):
                for field in self._fields:
                    yield Static(neutral(field.name), markup=False)
                    yield Field(value=field.default, placeholder="empty")
            yield Static(KEYS, markup=False)

    def on_mount(self) -> None:
        """Begin with the first field."""
        self.query(Input).first().focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go on to the next field; after the last one, the prompt is complete."""
        event.stop()
        inputs = list(self.query(Input))
        place = inputs.index(event.input)
        if place + 1 < len(inputs):
            inputs[place + 1].focus()
            return
        values = {field.name: each.value for field, each in zip(self._fields, inputs, strict=True)}
        self.dismiss(filled(self._prompt.text, values))

    def action_leave(self) -> None:
        """Cancel."""
        self.dismiss(None)
