"""The help screen: every command with its keys and description, from the command table.

In: remapped keys. Out: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from edgeinfer.app.chat.commands import COMMANDS, GROUPS, ChatCommand

COMPOSER = (
    ("Enter", "send; while an answer is written: ask it afterwards"),
    ("Ctrl+J", "a new line (Shift+Enter too, in some terminals)"),
    ("Up, Down", "earlier inputs"),
    ("@path", "attach a file or folder; Tab completes"),
    ("mouse", "selects text of the chat, which Ctrl+C copies"),
    ("//", "begins a message that begins with a slash"),
)
KEY_CELLS, FORM_CELLS = 14, 24
NARROW = 70
EDGES = 4
"""Cells of a line taken by padding and the scroll bar."""
NAMES = {"pageup": "PageUp", "pagedown": "PageDown"}


class HelpScreen(Screen[None]):
    """Shows the commands until Escape is pressed."""

    DEFAULT_CSS = """
    HelpScreen #help-text { padding: 0 1; }
    """
    AUTO_FOCUS = "#help-scroll"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,f1", "leave", "back", id="help.back")]

    def __init__(self, keys: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._keys_given = dict(keys or {})

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help-scroll"):
            yield Static(id="help-text", markup=False)
        yield Footer()

    def on_resize(self) -> None:
        """Lay the text out for the new width."""
        self.query_one("#help-text", Static).update(help_text(self._keys_given, self.app.size.width - EDGES))

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)


def help_text(keys: Mapping[str, str], width: int) -> Text:
    """All commands, wrapped to `width` cells; on a narrow screen the description goes on its own line."""
    text = Text()
    text.append("writing\n", style="bold")
    for key, explanation in COMPOSER:
        _add(text, key, "", explanation, width)
    for group, heading in GROUPS.items():
        text.append(f"\n{heading}\n", style="bold")
        for command in COMMANDS:
            if command.group == group:
                form = f"/{command.form}" if command.form else ""
                _add(text, ", ".join(shown_keys(command, keys)), form, command.help, width)
    return text


def shown_keys(command: ChatCommand, keys: Mapping[str, str]) -> Iterator[str]:
    """The keys of a command in readable form, such as Ctrl+Y."""
    for key in keys.get(command.id, command.keys).split(","):
        if key:
            yield "+".join(NAMES.get(part, part.capitalize()) for part in key.strip().split("+"))


def _add(text: Text, key: str, form: str, explanation: str, width: int) -> None:
    is_narrow = width < NARROW
    indent = 2 if is_narrow else KEY_CELLS + FORM_CELLS
    if is_narrow:
        text.append(f"{key}  {form}\n" if key and form else f"{key}{form}\n", style="underline")
        text.append("  ")
    else:
        text.append(f"{key:<{KEY_CELLS}}{form:<{FORM_CELLS}}")
    text.append(f"\n{' ' * indent}".join(wrap(explanation, width - indent)) + "\n")
