"""Switching to other models and other screens: opening a model, models, machine, settings, help.

In: keys, commands, the engine thread's messages about opening a model. Out: another model, another screen.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from textual import work
from textual.timer import Timer

from edgeinfer.app.tui.actions.showing import ASKING, ShowingActions
from edgeinfer.app.tui.engine_messages import (
    ChatRestored,
    DownloadAsked,
    FirstModelAsked,
    ModelChosen,
    ModelFailed,
    ModelOpened,
    ModelOpening,
    OpenModelJob,
)
from edgeinfer.app.tui.widgets.entries import WRITING
from edgeinfer.errors import BadSetting, EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.catalogue.catalogue import Catalogue
    from edgeinfer.app.tui.engine import EngineModel
    from edgeinfer.app.tui.screens.models import ChosenModel
    from edgeinfer.app.tui.screens.settings import SettingsChanged

DEFAULT_CONTEXT = 4096
REDRAW_S = 0.5


class Switching(ShowingActions):
    """Mixin of the chat screen: models and the other screens."""

    _redrawing: Timer | None = None
    """Timer that updates the display while a model is being opened."""

    def open_model(self) -> None:
        """Open the model that the settings name, in place of the current one."""
        self.state.model = None
        self.opened = self.failed = ""
        self.opening("opening the model", 0, 0)
        self.show_opening()
        self.engine.give(OpenModelJob(self.state.tuning.settings))

    def on_model_opening(self, event: ModelOpening) -> None:
        """Progress of opening the model."""
        event.stop()
        self.opening(event.what, event.done, event.total, unit=event.unit, rate=event.rate)
        self.show_opening()

    def show_opening(self) -> None:
        """Show the progress of opening, refreshed until `end_opening` so that seconds count up between reports."""
        self.state.opening_text = self.opening.title
        self.show_title()
        if self.opening.step is not None:
            self.show_waiting(f"first the model: {self.opening.line()}")
        if self._redrawing is None:
            self._redrawing = self.set_interval(REDRAW_S, self.show_opening)

    def end_opening(self) -> None:
        """Opening a model has ended: clear its progress and stop the timer."""
        self.opening.clear()
        self.show_waiting(WRITING)
        self.state.opening_text = ""
        if self._redrawing is not None:
            self._redrawing.stop()
            self._redrawing = None

    def on_model_chosen(self, event: ModelChosen) -> None:
        """The model to open has been chosen: show its name and size."""
        from edgeinfer.text_values import size_text

        event.stop()
        self.opened = f"Opening {event.name}, {size_text(event.nbytes)}."
        self.show_title()

    def on_download_asked(self, event: DownloadAsked) -> None:
        """Ask whether to download a model that the user did not name."""
        event.stop()
        self.opening(ASKING, 0, 0)
        from edgeinfer.app.tui.screens.questions import DownloadQuestion

        self.app.push_screen(DownloadQuestion(event.text), lambda answer: event.answer(bool(answer)))

    def on_first_model_asked(self, event: FirstModelAsked) -> None:
        """Let the user choose the model to begin with."""
        event.stop()
        self.opening(ASKING, 0, 0)
        self.show_opening()
        from edgeinfer.app.tui.screens.first_model import MORE, FirstModelScreen

        screen = FirstModelScreen(self.catalogue())

        def take(name: str | None) -> None:
            chosen = "" if name in (None, MORE) else name or ""
            event.answer(chosen)
            if chosen:
                self.composer.type_ahead(screen.typed)
            elif screen.typed:
                self.composer.put(screen.typed.strip("\n"))
            if name == MORE:
                self.action_models()

        self.app.push_screen(screen, take)

    def on_model_opened(self, event: ModelOpened) -> None:
        """The model is open."""
        event.stop()
        self.end_opening()
        self.failed = ""
        self.state.model = event.model
        self.give_modules(event.model)
        self.recount()
        self.tell_all(event.model.info.notices)
        self.show_figures(None)  # clear the figures of the previous model
        self.show_title()
        self.look_at_context()

    def recount(self) -> None:
        """Count the tokens of the draft and of images again, for another model."""
        self.composer.recount()
        self.redraw_previews()

    def give_modules(self, model: EngineModel) -> None:
        """Give a model that was opened the modules of this run."""
        if self.state.modules.texts:
            self.put_modules_back(model)

    @work(thread=True, group="modules")
    def put_modules_back(self, model: EngineModel) -> None:
        """The same, in a thread."""
        try:
            self.state.modules.put_back(model.modules)
        except EdgeInferError as error:
            self.app.call_from_thread(self.tell, str(error), is_error=True)

    def on_model_failed(self, event: ModelFailed) -> None:
        """The model could not be opened; the previous one, if any, stays in use."""
        event.stop()
        self.end_opening()
        self.state.model = event.model
        if event.model is not None:
            self.give_modules(event.model)
        if event.model is not None and self.state.tuning.settings.model.model != event.setting:
            with suppress(BadSetting):  # the settings file may have been broken meanwhile
                self.state.tuning.put("model", event.setting)
        self.recount()
        self.failed = "" if event.model is not None else event.reason
        self.show_title()
        if event.model is not None or self.transcript.entries:  # else the first page says it
            self.tell(f"{event.reason} (Ctrl+L shows the models)", is_error=True)

    def on_chat_restored(self, event: ChatRestored) -> None:
        """The KV cache of this chat has been restored."""
        event.stop()
        if event.chat == self.chat.number:
            self.tell(f"{event.n_tokens:,} tokens of this chat are in memory already")

    def action_models(self, argument: str = "") -> None:
        """Open the named model, or show the models screen to choose one."""
        if argument:
            self.switch_model(argument)
            return
        from edgeinfer.app.tui.screens.models import ModelsScreen

        model = self.state.model
        asked = self.state.tuning.settings.load.n_context
        n_context = asked or (DEFAULT_CONTEXT if model is None else model.info.n_context)
        self.app.push_screen(ModelsScreen(self.catalogue(), self.model_name, n_context), self.take_model)

    def catalogue(self) -> Catalogue:
        """The app's catalogue, shared by all screens so that pulls continue while none shows them."""
        if self.state.catalogue is None:
            from edgeinfer.app.catalogue.catalogue import Catalogue

            load = self.state.tuning.settings.load
            self.state.catalogue = Catalogue(kv=load.kv, held_bytes=self.held_bytes, threads=load.threads)
        return self.state.catalogue

    def held_bytes(self) -> int:
        """Memory that is released when another model replaces this one."""
        return 0 if self.state.model is None else self.state.model.info.resident_bytes

    def take_model(self, chosen: ChosenModel | None) -> None:
        """Open the model chosen on the models screen."""
        if chosen is not None and chosen.name != self.model_name:
            self.switch_model(chosen.name)

    def switch_model(self, name: str) -> None:
        """Open another model and continue the chat with it."""
        try:
            self.state.tuning.put("model", name)
        except BadSetting as error:
            self.tell(str(error), is_error=True)
            return
        self.open_model()

    def action_machine(self, argument: str = "") -> None:
        """Show the machine screen."""
        from edgeinfer.app.readings.service import Readings
        from edgeinfer.app.tui.screens.machine import MachineScreen

        self.app.push_screen(MachineScreen(self.engine.readings or Readings()))

    def action_settings(self, argument: str = "") -> None:
        """Show the settings screen."""
        from edgeinfer.app.tui.screens.settings import SettingsScreen

        self.app.push_screen(SettingsScreen(self.state.tuning.settings, self.state.tuning.reread), self.take_settings)

    def take_settings(self, changed: SettingsChanged | None) -> None:
        """Apply changed settings; if some of them need it, reopen the model."""
        if changed is None:
            return
        theme = self.state.tuning.settings.face.theme
        if "theme" in changed.names and theme in self.app.available_themes:
            self.app.theme = theme
        if "previews" in changed.names:
            self.redraw_previews()
        if changed.needs_reload:
            self.tell("the model is opened again with the new settings")
            self.open_model()

    def action_theme(self, argument: str = "") -> None:
        """Switch to the named theme, or choose one from a list."""
        if not argument:
            self.app.search_themes()
        elif argument in self.app.available_themes:
            self.app.theme = argument
        else:
            self.tell(
                f"no theme is called {argument!r}; there are: {', '.join(self.app.available_themes)}", is_error=True
            )

    def action_help(self, argument: str = "") -> None:
        """Show the help screen."""
        from edgeinfer.app.tui.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.state.keys))
