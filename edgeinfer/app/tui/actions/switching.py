"""Other models and other screens: opening a model, models, machine, settings, help.

In: keys, commands, what the engine's thread posts of opening. Out: another model, another screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.tui.actions.showing import Showing
from edgeinfer.app.tui.jobs import OpenModel
from edgeinfer.app.tui.messages import ChatRestored, ModelFailed, ModelOpened, ModelOpening
from edgeinfer.app.tui.screens.help import HelpScreen
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.catalogue.catalogue import Catalogue
    from edgeinfer.app.tui.screens.models import Chosen
    from edgeinfer.app.tui.screens.settings import Changed

DEFAULT_CONTEXT = 4096


class Switching(Showing):
    """Part of the chat screen."""

    def open_model(self) -> None:
        """Open the model that the settings name, in place of the one that is open."""
        self.desk.model = None
        self.desk.opening_text = "opening the model"
        self.show_title()
        self.engine.give(OpenModel(self.desk.tuning.settings))

    def on_model_opening(self, event: ModelOpening) -> None:
        """How far it is."""
        event.stop()
        self.desk.opening_text = f"{event.what}: {event.done:,} of {event.total:,}" if event.total else event.what
        self.show_title()

    def on_model_opened(self, event: ModelOpened) -> None:
        """It is there."""
        event.stop()
        self.desk.model, self.desk.opening_text = event.model, ""
        self.composer.recount()
        self.tell_all(event.model.facts.notices)
        self.show_title()
        self.look_at_context()

    def on_model_failed(self, event: ModelFailed) -> None:
        """It is not."""
        event.stop()
        self.desk.model, self.desk.opening_text = None, ""
        self.show_title()
        self.tell(f"{event.reason} (Ctrl+L shows the models)", is_error=True)

    def on_chat_restored(self, event: ChatRestored) -> None:
        """What was read of the chat before is in memory again."""
        event.stop()
        if event.chat == self.chat.number:
            self.tell(f"{event.n_tokens:,} tokens of this chat are in memory already")

    def action_models(self, argument: str = "") -> None:
        """Choose a model, or open the one that is named."""
        if argument:
            self.switch_model(argument)
            return
        from edgeinfer.app.tui.screens.models import ModelsScreen

        model = self.desk.model
        asked = self.desk.tuning.settings.generation.ctx
        n_context = asked or (DEFAULT_CONTEXT if model is None else model.facts.n_context)
        self.app.push_screen(ModelsScreen(self.catalogue(), self.model_name, n_context), self.take_model)

    def catalogue(self) -> Catalogue:
        """The one of this app: pulls go on while no screen shows them."""
        if self.desk.catalogue is None:
            from edgeinfer.app.catalogue.catalogue import Catalogue

            machine = self.desk.tuning.settings.machine
            self.desk.catalogue = Catalogue(kv=machine.kv, held_bytes=self.held_bytes, threads=machine.threads)
        return self.desk.catalogue

    def held_bytes(self) -> int:
        """Memory that comes free when another model takes the place of this one."""
        return 0 if self.desk.model is None else self.desk.model.facts.resident_bytes

    def take_model(self, chosen: Chosen | None) -> None:
        """Open what was chosen on the models screen."""
        if chosen is not None and chosen.name != self.model_name:
            self.switch_model(chosen.name)

    def switch_model(self, name: str) -> None:
        """Open another model; the chat goes on with it."""
        try:
            self.desk.tuning.put("model", name)
        except BadSetting as error:
            self.tell(str(error), is_error=True)
            return
        self.open_model()

    def action_machine(self, argument: str = "") -> None:
        """Show what the machine is doing."""
        from edgeinfer.app.readings.service import Readings
        from edgeinfer.app.tui.screens.machine import MachineScreen

        self.app.push_screen(MachineScreen(self.engine.readings or Readings()))

    def action_settings(self, argument: str = "") -> None:
        """Show and change the settings."""
        from edgeinfer.app.tui.screens.settings import SettingsScreen

        self.app.push_screen(SettingsScreen(self.desk.tuning.settings, self.desk.tuning.reread), self.take_settings)

    def take_settings(self, changed: Changed | None) -> None:
        """Settings were changed: those that count at once do, for others the model is opened again."""
        if changed is None:
            return
        theme = self.desk.tuning.settings.face.theme
        if "theme" in changed.names and theme in self.app.available_themes:
            self.app.theme = theme
        if changed.needs_reload:
            self.tell("the model is opened again with the new settings")
            self.open_model()

    def action_theme(self, argument: str = "") -> None:
        """Change the colours, to the theme that is named or to one chosen from a list."""
        if not argument:
            self.app.search_themes()
        elif argument in self.app.available_themes:
            self.app.theme = argument
        else:
            self.tell(
                f"no theme is called {argument!r}; there are: {', '.join(self.app.available_themes)}", is_error=True
            )

    def action_help(self, argument: str = "") -> None:
        """Show keys and commands."""
        self.app.push_screen(HelpScreen(self.desk.keys))
