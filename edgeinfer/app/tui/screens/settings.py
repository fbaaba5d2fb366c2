"""The settings screen: every declared option with its value and origin, edited in place and saved at once.

In: the current settings. Out: the names of changed settings. The table is generated from the declarations, so that
every declared option appears.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from edgeinfer.app.config_file import write_setting, written
from edgeinfer.app.tui.app_state import needs_reload
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.text_fields import Field
from edgeinfer.errors import BadSetting
from edgeinfer.settings import Option, Settings, declared_options, load_settings, read_value

NARROW = 70
COLUMNS = ("name", "value", "from")


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Settings that were saved; `needs_reload`: whether the model must be reopened for some of them."""

    names: tuple[str, ...]
    needs_reload: bool


class SettingsScreen(Screen[SettingsChanged | None]):
    """A table of settings, a field to edit one, and its explanation."""

    DEFAULT_CSS = """
    SettingsScreen #settings-filter { height: 1; border: none; padding: 0 1; background: $panel; }
    SettingsScreen DataTable { height: 1fr; min-height: 3; }
    SettingsScreen #setting-help { height: auto; max-height: 3; padding: 0 1; color: $text-muted; }
    SettingsScreen #setting-value { display: none; height: 1; border: none; padding: 0 1; background: $surface; }
    SettingsScreen.-editing #setting-value { display: block; }
    """
    AUTO_FOCUS = "DataTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "back", id="settings.back"),
        Binding("enter", "edit", "change", id="settings.edit", show=False),
        Binding("e", "edit", "change", id="settings.change"),
        Binding("space", "step", "next word", id="settings.step", show=False),
        Binding("delete", "reset", "default", id="settings.reset"),
        Binding("slash", "filter", "find", id="settings.find"),
    ]

    def __init__(self, settings: Settings, reread: Callable[[], Settings] = load_settings) -> None:
        """`reread`: returns the settings after a change."""
        super().__init__()
        self._settings = settings
        self._reread = reread
        self._changed: list[str] = []
        self._edited: Option[object] | None = None

    def compose(self) -> ComposeResult:
        yield Field(placeholder="find a setting", id="settings-filter")
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Static(id="setting-help", markup=False)
        yield Field(id="setting-value")
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for column in COLUMNS:
            table.add_column(column, key=column)
        self._list("")

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor has moved: show the setting's explanation."""
        if (option := self._at_cursor()) is not None:
            self._tell(self._explanation(option))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter or a click: a setting with a list of words switches to the next word, any other is edited."""
        option = self._at_cursor()
        if option is not None and option.words:
            self.action_step()
        else:
            self.action_edit()

    def action_step(self) -> None:
        """Switch a setting with a list of words to the next word."""
        option = self._at_cursor()
        if option is None or not option.words or self._edited is not None:
            return
        now = written(option, self._settings.value(option.name))
        after = option.words.index(now) + 1 if now in option.words else 0
        self._write(option, option.words[after % len(option.words)])

    def on_input_changed(self, event: Input.Changed) -> None:
        """The filter, or the value being edited, has changed; an invalid value is reported at once."""
        if event.input.id == "settings-filter":
            self._list(event.value)
        elif self._edited is not None:
            self._tell(self._wrong(self._edited, event.value) or self._explanation(self._edited))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Save the value, or leave the filter."""
        if event.input.id == "settings-filter":
            self.query_one(DataTable).focus()
        elif self._edited is not None and self._write(self._edited, event.value):
            self._end_editing()

    def action_leave(self) -> None:
        """Cancel editing, leave the filter, or close the screen."""
        found = self.query_one("#settings-filter", Input)
        if self._edited is not None:
            self._end_editing()
        elif found.has_focus:
            found.value = ""
            self.query_one(DataTable).focus()
        else:
            names = tuple(dict.fromkeys(self._changed))
            self.dismiss(SettingsChanged(names, any(map(needs_reload, names))) if names else None)

    def action_edit(self) -> None:
        """Edit the setting under the cursor."""
        if (option := self._at_cursor()) is None:
            return
        self._edited = option
        self.add_class("-editing")
        self.refresh_bindings()
        field = self.query_one("#setting-value", Input)
        field.value = written(option, self._settings.value(option.name))
        field.focus()

    def action_reset(self) -> None:
        """Remove the setting from the file, so that its default applies again."""
        if (option := self._at_cursor()) is not None:
            self._write(option, None)

    def action_filter(self) -> None:
        """Focus the filter."""
        self.query_one("#settings-filter", Input).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which keys are active."""
        return self._edited is None or action not in ("edit", "reset", "filter")

    def _write(self, option: Option[object], text: str | None) -> bool:
        try:
            write_setting(option.name, text)
            self._settings = self._reread()
        except BadSetting as error:
            self._tell(str(error))
            return False
        self._changed.append(option.name)
        value, origin = self._row(option)
        table = self.query_one(DataTable)
        table.update_cell(option.name, "value", value)
        table.update_cell(option.name, "from", origin)
        self._tell(self._explanation(option))
        return True

    def _end_editing(self) -> None:
        if self._edited is not None:
            self._tell(self._explanation(self._edited))
        self._edited = None
        self.remove_class("-editing")
        self.refresh_bindings()
        self.query_one(DataTable).focus()

    def _list(self, wanted: str) -> None:
        table = self.query_one(DataTable)
        table.clear()
        for option in declared_options().values():
            if wanted.casefold() in f"{option.name} {option.help}".casefold():
                table.add_row(option.name, *self._row(option), key=option.name)

    def _row(self, option: Option[object]) -> tuple[str, str]:
        origin = self._settings.origins[option.name]
        value = written(option, self._settings.value(option.name)) or option.unset
        return neutral(value), "" if origin == "default" else neutral(origin)

    def _at_cursor(self) -> Option[object] | None:
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        return declared_options()[str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)]

    def _explanation(self, option: Option[object]) -> str:
        """What a setting means, and whether something overrides the settings file."""
        origin = self._settings.origins[option.name]
        above = (
            "" if origin == "default" or origin.endswith("config.toml") else f" (now from {origin}, before the file)"
        )
        later = " The model is opened again for it." if needs_reload(option.name) else ""
        words = " Enter or Space: the next word." if option.words else ""
        return f"{option.help}{words}{later}{above}"

    def _wrong(self, option: Option[object], text: str) -> str:
        try:
            read_value(option.name, text)
        except BadSetting as reason:
            return str(reason)
        return ""

    def _tell(self, text: str) -> None:
        self.query_one("#setting-help", Static).update(neutral(text))
