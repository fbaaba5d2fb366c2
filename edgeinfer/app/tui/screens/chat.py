"""The chat screen: transcript, context bar, composer, meters.

In: an `AppState`. Out: the conversation. Keys and commands are implemented by the mixins in `tui/actions`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from textual import work
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.containers import Container

from edgeinfer.app.chat.commands import COMMANDS, find, slash_commands
from edgeinfer.app.chat.input_history import InputHistory, history_path
from edgeinfer.app.tui.actions.asking_folder import FolderActions
from edgeinfer.app.tui.actions.beside import BesideActions
from edgeinfer.app.tui.actions.coding import CodingActions
from edgeinfer.app.tui.engine_messages import Notified
from edgeinfer.app.tui.keys import action_of, bindings
from edgeinfer.app.tui.widgets.chat_bars import ContextBar, Meters, TitleBar, UnsavedBanner
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.app.tui.widgets.first_page import FirstPage
from edgeinfer.app.tui.widgets.transcript import Transcript
from edgeinfer.errors import BadSetting


class ChatScreen(BesideActions, FolderActions, CodingActions):
    """The main screen of the app."""

    DEFAULT_CSS = """
    #pages { height: 1fr; min-height: 3; layers: messages first; }
    #pages Transcript { layer: messages; height: 100%; }
    #pages FirstPage { layer: first; height: 100%; }
    """
    BINDINGS = bindings()
    AUTO_FOCUS = "Composer TextArea"

    def compose(self) -> ComposeResult:
        yield TitleBar()
        if self.state.unsaved:
            yield UnsavedBanner(self.state.unsaved)
        with Container(id="pages"):
            yield Transcript()
            yield FirstPage()
        yield ContextBar()
        yield Composer(
            history=InputHistory(None if self.state.unsaved else history_path()),
            commands=[(command.form, command.help) for command in slash_commands()],
            count_tokens=self.count_tokens,
        )
        yield Meters()

    async def on_mount(self) -> None:
        """Carry out the command line before any key arrives; the engine begins after the first draw."""
        self.begin_picturing()
        self.composer.fit = self.fit_draft
        self.show_title()
        self.state.autosave.failed = self.tell_unsaved
        self.open_model()
        await self.begin_as(self.state.beginning)
        self.composer.type_ahead(self.state.typed.text)
        self.call_after_refresh(self.begin)

    def on_screen_resume(self) -> None:
        """This screen is on top again."""
        self.transcript.draw()

    def begin(self) -> None:
        """After the first draw: begin to open the model."""
        if not gc.isenabled():
            gc.freeze()  # what the start has made stays
            gc.enable()
        self.engine.start()
        self.start_tools()
        self.prepare_drawing()

    @work(thread=True, group="preparing")
    def prepare_drawing(self) -> None:
        """Import the drawing code in a thread while the model is opened."""
        from edgeinfer.app.tui.text.growing_lines import prepare

        prepare()

    def tell_unsaved(self, reason: str) -> None:
        """Report that autosave cannot write; called from its thread."""
        self.post_message(Notified(f"not saved yet, and tried again: {reason}", is_error=True))

    def doing(self, action: str) -> Callable[[], None]:
        """A callback that runs an action of this screen, for the palette."""

        def do() -> None:
            self.run_worker(self.run_action(action), group="palette")

        return do

    def action_editor(self, argument: str = "") -> None:
        """Edit the draft in $EDITOR."""
        self.composer.action_editor()

    def action_select_previous(self) -> None:
        """Select the previous message."""
        self.transcript.select_previous()

    def action_select_next(self) -> None:
        """Select the next message."""
        self.transcript.select_next()

    def action_follow(self) -> None:
        """Scroll to the latest text and follow it."""
        self.transcript.follow()

    def action_page_up(self) -> None:
        """Scroll up one page."""
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """Scroll down one page."""
        self.transcript.scroll_page_down(animate=False)

    async def action_leave_empty(self) -> None:
        """Exit on the end-of-input key, like other programs; if there is a draft, the composer handles the key."""
        if self.composer.draft.text:
            raise SkipAction
        await self.action_leave()

    async def action_leave(self, argument: str = "") -> None:
        """Exit; everything is saved."""
        self.leave_answer()
        self.app.exit(0)

    async def on_composer_command(self, event: Composer.Command) -> None:
        """Run a command line such as "/temp 0.2"."""
        try:
            command, argument = find(event.line)
        except BadSetting as error:
            self.tell(str(error), is_error=True)
            return
        await self.run_action(action_of(command, argument))

    def action_command(self, id: str, argument: str = "") -> None:
        """Run a command that is shared by all faces, and show the line it returns."""
        run = next(command.run for command in COMMANDS if command.id == id)
        assert run is not None
        self.tell(run(self, argument))
