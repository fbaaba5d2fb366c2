"""The screens of texts that the user has named, to choose, create and edit: personas, and saved prompts.

In: `NamedTexts`, the text that a new one begins with. Out: the chosen one, or None.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from edgeinfer.app.chat.personas import NamedText, NamedTexts
from edgeinfer.app.plain_text import harmless
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.text_fields import Area, Field
from edgeinfer.errors import EdgeInferError


class NamedTextsScreen(Screen[NamedText | None]):
    """A list of texts, and the one under the cursor in full."""

    none_yet: ClassVar[str]

    DEFAULT_CSS = """
    NamedTextsScreen OptionList { height: 2fr; min-height: 3; &, &:focus { border: none; } }
    NamedTextsScreen #persona-name { display: none; height: 1; border: none; padding: 0 1; }
    NamedTextsScreen #persona-text { height: 3fr; min-height: 3; border: none; }
    NamedTextsScreen #persona-hint { height: 1; padding: 0 1; color: $text-muted; text-wrap: nowrap; }
    NamedTextsScreen.-editing #persona-name { display: block; }
    """
    AUTO_FOCUS = "OptionList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", id="personas.back"),
        Binding("n", "make", "new", id="personas.new"),
        Binding("e", "edit", "edit", id="personas.edit"),
        Binding("delete", "remove", "delete", id="personas.delete"),
        Binding("u", "undo", "undo", id="personas.undo"),
        Binding("ctrl+s", "save", "save", id="personas.save", priority=True),
    ]

    def __init__(self, texts: NamedTexts, current: str | None) -> None:
        super().__init__()
        self._texts = texts
        self._in_use = current or ""
        self._listed: tuple[NamedText, ...] = ()
        self._removed: NamedText | None = None
        self._edited = NamedText("", "")

    def compose(self) -> ComposeResult:
        yield OptionList()
        yield Field(placeholder="name", id="persona-name")
        yield Area(id="persona-text", read_only=True, soft_wrap=True)
        yield Static(id="persona-hint", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._list()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """The cursor has moved: show its text."""
        if not self.has_class("-editing"):
            self.query_one(TextArea).text = harmless(self._listed[event.option_index].text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """One was chosen."""
        self.dismiss(self._listed[event.option_index])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The name was entered: move on to the text."""
        event.stop()
        self.query_one(TextArea).focus()

    def action_leave(self) -> None:
        """Cancel editing, or close the screen."""
        if self.has_class("-editing"):
            self._end_editing()
            at_cursor = self._at_cursor()
            self.query_one(TextArea).text = harmless(at_cursor.text) if at_cursor is not None else ""
        else:
            self.dismiss(None)

    def action_make(self) -> None:
        """Create one, starting from the text in use."""
        self._edit(NamedText("", self._in_use))

    def action_edit(self) -> None:
        """Edit the one under the cursor."""
        if (persona := self._at_cursor()) is not None:
            self._edit(persona)

    def action_save(self) -> None:
        """Save the edited one."""
        if not self.has_class("-editing"):
            return
        name, before = self.query_one(Input).value.strip(), self._edited.name
        if (other := self._other_of(name)) is not None:
            self._tell(f"there is one called {other} already")
            return
        try:
            self._texts.save(name, self.query_one(TextArea).text)
            if before and before.casefold() != name.casefold():
                self._texts.remove(before)
        except EdgeInferError as error:
            self._tell(str(error))
            return
        self._end_editing()
        self._list(name)

    def action_remove(self) -> None:
        """Delete the one under the cursor."""
        if (persona := self._at_cursor()) is None:
            return
        try:
            self._removed = self._texts.remove(persona.name)
        except EdgeInferError as error:
            self._tell(str(error))
            return
        self._list()
        self._tell(f"{persona.name} is deleted; u brings it back")

    def action_undo(self) -> None:
        """Restore the one deleted last."""
        if self._removed is None:
            return
        if self._removed.name.casefold() in {persona.name.casefold() for persona in self._listed}:
            self._tell(f"there is a new one called {self._removed.name}: rename it first")
            return
        try:
            self._texts.save(self._removed.name, self._removed.text)
        except EdgeInferError as error:
            self._tell(str(error))
            return
        self._list(self._removed.name)
        self._removed = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which keys are active."""
        editing = self.has_class("-editing")
        if action == "save":
            return editing
        return not editing if action in ("make", "edit", "remove", "undo") else True

    def _other_of(self, name: str) -> str | None:
        """The name of an existing one, other than the edited one, that saving as `name` would overwrite."""
        free = self._edited.name.casefold()
        names = (persona.name for persona in self._texts.all() if persona.name.casefold() != free)
        return next((other for other in names if other.casefold() == name.casefold()), None)

    def _edit(self, persona: NamedText) -> None:
        self._edited = persona
        self.add_class("-editing")
        name, area = self.query_one(Input), self.query_one(TextArea)
        name.value, area.text, area.read_only = persona.name, persona.text, False
        (area if persona.name else name).focus()
        self._tell("Ctrl+S keeps it, Escape does not; Enter or Tab goes from the name to the text")
        self.refresh_bindings()

    def _end_editing(self) -> None:
        self.remove_class("-editing")
        self.query_one(TextArea).read_only = True
        self.query_one(OptionList).focus()
        self._tell("")
        self.refresh_bindings()

    def _list(self, at: str = "") -> None:
        self._listed = self._texts.all()
        found = self.query_one(OptionList)
        found.clear_options()
        found.add_options([Option(neutral(persona.name)) for persona in self._listed])
        if self._listed:
            found.highlighted = next((i for i, persona in enumerate(self._listed) if persona.name == at), 0)
        else:
            self.query_one(TextArea).text = ""
            self._tell(self.none_yet)

    def _at_cursor(self) -> NamedText | None:
        place = self.query_one(OptionList).highlighted
        return None if place is None or not self._listed else self._listed[place]

    def _tell(self, text: str) -> None:
        self.query_one("#persona-hint", Static).update(neutral(text))


class PersonasScreen(NamedTextsScreen):
    """Saved system prompts."""

    none_yet = "no personas yet: n makes one, from the system prompt in use"


class SavedPromptsScreen(NamedTextsScreen):
    """Saved messages."""

    none_yet = "no saved prompts yet: n makes one, from the input; fields such as {{name}} are asked for"
