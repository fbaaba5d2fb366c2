"""Other models and other screens: opening a model, models, machine, settings, help.

In: keys, commands, what the engine's thread posts of opening. Out: another model, another screen.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from textual.timer import Timer

from edgeinfer.app.tui.actions.metering import Metering
from edgeinfer.app.tui.actions.showing import ASKING, ShowingActions
from edgeinfer.app.tui.jobs import OpenModelJob
from edgeinfer.app.tui.messages import ChatRestored, DownloadAsked, ModelChosen, ModelFailed, ModelOpened, ModelOpening
from edgeinfer.app.tui.screens.help import HelpScreen
from edgeinfer.app.tui.screens.questions import DownloadQuestion
from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.catalogue.catalogue import Catalogue
    from edgeinfer.app.tui.screens.models import ChosenModel
    from edgeinfer.app.tui.screens.settings import SettingsChanged

DEFAULT_CONTEXT = 4096
REDRAW_S = 0.5


class Switching(ShowingActions, Metering):
    """Part of the chat screen."""

    _redrawing: Timer | None = None
    """While a model is being opened."""

    def open_model(self) -> None:
        """Open the model that the settings name, in place of the one that is open."""
        self.state.model = None
        self.opened = ""
        self.opening("opening the model", 0, 0)
        self.show_opening()
        self.engine.give(OpenModelJob(self.state.tuning.settings))

    def on_model_opening(self, event: ModelOpening) -> None:
        """How far it is."""
        event.stop()
        self.opening(event.what, event.done, event.total)
        self.show_opening()

    def show_opening(self) -> None:
        """Show how far opening is, now and again until it is over: seconds go on while nothing is reported."""
        self.state.opening_text = self.opening.title
        self.show_title()
        if self._redrawing is None:
            self._redrawing = self.set_interval(REDRAW_S, self.show_opening)

    def end_opening(self) -> None:
        """It is over."""
        self.opening.clear()
        self.state.opening_text = ""
        if self._redrawing is not None:
            self._redrawing.stop()
            self._redrawing = None

    def on_model_chosen(self, event: ModelChosen) -> None:
        """Which model it is."""
        from edgeinfer.models.download.space import size_text

        event.stop()
        self.opened = f"Opening {event.name}, {size_text(event.nbytes)}."
        self.show_title()

    def on_download_asked(self, event: DownloadAsked) -> None:
        """A model that nobody named would be fetched: ask."""
        event.stop()
        self.opening(ASKING, 0, 0)
        self.app.push_screen(DownloadQuestion(event.text), lambda answer: event.answer(bool(answer)))

    def on_model_opened(self, event: ModelOpened) -> None:
        """It is there."""
        event.stop()
        self.end_opening()
        self.state.model = event.model
        self.composer.recount()
        self.tell_all(event.model.info.notices)
        self.show_figures(None)  # those of the model before
        self.show_title()
        self.look_at_context()

    def on_model_failed(self, event: ModelFailed) -> None:
        """It is not; the one before stays, where there was one."""
        event.stop()
        self.end_opening()
        self.state.model = event.model
        if event.model is not None and self.state.tuning.settings.model.model != event.setting:
            with suppress(BadSetting):  # a file of settings was broken meanwhile
                self.state.tuning.put("model", event.setting)
        self.composer.recount()
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

        model = self.state.model
        asked = self.state.tuning.settings.load.n_context
        n_context = asked or (DEFAULT_CONTEXT if model is None else model.info.n_context)
        self.app.push_screen(ModelsScreen(self.catalogue(), self.model_name, n_context), self.take_model)

    def catalogue(self) -> Catalogue:
        """The one of this app: pulls go on while no screen shows them."""
        if self.state.catalogue is None:
            from edgeinfer.app.catalogue.catalogue import Catalogue

            load = self.state.tuning.settings.load
            self.state.catalogue = Catalogue(kv=load.kv, held_bytes=self.held_bytes, threads=load.threads)
        return self.state.catalogue

    def held_bytes(self) -> int:
        """Memory that comes free when another model takes the place of this one."""
        return 0 if self.state.model is None else self.state.model.info.resident_bytes

    def take_model(self, chosen: ChosenModel | None) -> None:
        """Open what was chosen on the models screen."""
        if chosen is not None and chosen.name != self.model_name:
            self.switch_model(chosen.name)

    def switch_model(self, name: str) -> None:
        """Open another model; the chat goes on with it."""
        try:
            self.state.tuning.put("model", name)
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

        self.app.push_screen(SettingsScreen(self.state.tuning.settings, self.state.tuning.reread), self.take_settings)

    def take_settings(self, changed: SettingsChanged | None) -> None:
        """Settings were changed: those that count at once do, for others the model is opened again."""
        if changed is None:
            return
        theme = self.state.tuning.settings.face.theme
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
        self.app.push_screen(HelpScreen(self.state.keys))
