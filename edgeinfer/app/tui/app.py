"""The terminal app: runs the screens and shuts down cleanly, however it is asked to exit.

In: an `AppState`. Out: an exit code. `launch` opens and closes all resources. When the terminal goes away or a signal
arrives, the chat is saved and the model closed. With NO_COLOR, bold, reverse and underline show what is otherwise shown
by colour; while the terminal is too small, a notice covers it and the screens below are left unchanged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping

from textual.actions import ActionParseResult
from textual.app import App, ComposeResult, SystemCommand
from textual.dom import DOMNode
from textual.driver import Driver
from textual.events import Resize
from textual.geometry import Size
from textual.screen import ModalScreen, Screen
from textual.widget import AwaitMount
from textual.widgets import Static

from edgeinfer.app.tui.app_state import AppState
from edgeinfer.app.tui.keys import other_ids, palette, remapped
from edgeinfer.app.tui.screens.chat import ChatScreen
from edgeinfer.errors import EdgeInferError
from edgeinfer.settings import find_option

HANGUP_CODE = 129
LAST_S = 30.0
"""After such a signal the process ends within this time: what writes to a terminal that is gone may wait for ever."""
FEW_COLOUR_TERMS = ("linux", "ansi", "xterm", "screen", "vt100", "vt220", "cygwin", "rxvt")
LEAST_WIDTH, LEAST_HEIGHT = 40, 12
"""Minimum size of the terminal in cells."""
FEW_COLOURS_THEME = "ansi-dark"
"""In place of the default theme where there are 16 colours, as its own would become: the terminal's."""
# Without colours, selection, cursor and focus must stay visible. These rules are for Textual's own widgets; ours define
# theirs themselves. OptionList does not draw reverse (Textual 8.2), so its cursor is bold and underlined.
NO_COLOUR_CSS = """
OptionList:nocolor > .option-list--option-highlighted { text-style: bold underline; }
DataTable:nocolor > .datatable--cursor { text-style: reverse; }
DataTable:nocolor > .datatable--header { text-style: bold underline; }
Tree:nocolor > .tree--cursor { text-style: reverse; }
ListView:nocolor > ListItem.-highlight { text-style: bold underline; }
Input:nocolor > .input--cursor { text-style: reverse; }
Input:nocolor > .input--selection { text-style: reverse; }
Input:nocolor > .input--placeholder { text-style: italic; }
TextArea:nocolor .text-area--cursor { text-style: reverse; }
TextArea:nocolor .text-area--selection { text-style: reverse; }
TextArea:nocolor .text-area--placeholder { text-style: italic; }
FooterKey:nocolor .footer-key--key { text-style: bold; }
Tab:nocolor.-active { text-style: bold underline; }
ToggleButton:nocolor:focus { text-style: underline; }
Button:nocolor:focus { text-style: bold underline; }
CollapsibleTitle:nocolor:focus { text-style: bold underline; }
"""
# Of 16 colours, the bright ones are too loud for what is not selected.
ANSI_CSS = """
DataTable:ansi > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold underline; }
FooterKey:ansi .footer-key--key { color: ansi_default; text-style: bold; }
"""


class ChatApp(App[int]):
    """The Textual app behind `edgeinfer chat`."""

    TITLE = "edgeinfer"
    CSS = (
        """
    ToastRack { dock: top; align: right top; margin: 1 0 0 0; }
    Toast { padding: 0 1; max-width: 100%; }
    """
        + NO_COLOUR_CSS
        + ANSI_CSS
    )
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, state: AppState) -> None:
        super().__init__(ansi_color=ansi_colour(os.environ))
        self.state = state
        self.chat_screen = ChatScreen(state)

    def get_driver_class(self) -> type[Driver]:
        """Return Textual's driver of this terminal; on POSIX systems one that may be stopped and continued."""
        usual = super().get_driver_class()
        if sys.platform != "win32" and usual.__name__ == "LinuxDriver":
            from edgeinfer.app.tui.posix_terminal import PosixTerminal

            return PosixTerminal
        return usual

    def get_default_screen(self) -> ChatScreen:
        return self.chat_screen

    def on_load(self) -> None:
        """Before the terminal sends anything: let keys wait for the chat screen, which mounts in its own task."""
        self.call_later(AwaitMount(self.chat_screen, [self.chat_screen]))

    def on_mount(self) -> None:
        face = self.state.tuning.settings.face
        if face.theme in self.available_themes:
            is_default = face.theme == find_option("theme").default
            self.theme = FEW_COLOURS_THEME if is_default and self.state.has_few_colours else face.theme
        else:
            self.chat_screen.tell(f"no theme is called {face.theme!r}; there are: {', '.join(self.available_themes)}")
        keys, notices = remapped(face.keys, other_ids() if face.keys else ())
        self.state.keys = keys
        self.set_keymap(keys)
        for notice in notices:
            self.chat_screen.tell(notice)
        self._heed_signals()
        if self.state.typed.mode is not None and self._driver is not None and hasattr(self._driver, "attrs_before"):
            self._driver.attrs_before = self.state.typed.mode  # terminal mode for an external editor

    def on_resize(self, event: Resize) -> None:
        """Show a notice on a terminal that is too small, until it is enlarged."""
        too_small = is_too_small(event.size.width, event.size.height)
        if isinstance(self.screen, TooSmallScreen):
            if too_small:
                self.screen.say(event.size)
            else:
                self.pop_screen()
        elif too_small and self.chat_screen.is_mounted:  # the size comes once more after that
            self.push_screen(TooSmallScreen())

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Entries of the command palette: our commands, and the Textual commands that are useful here."""
        if screen is self.chat_screen:
            for title, help_text, do in palette(self.chat_screen.doing):
                yield SystemCommand(title, help_text, do)
        for command in super().get_system_commands(screen):
            if command.title in ("Theme", "Screenshot"):
                yield command

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run the action of a key or command. Errors are shown as notices on the current screen."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except EdgeInferError as error:
            self.chat_screen.tell(str(error), is_error=True)
            return True

    async def action_quit(self) -> None:
        """Exit from any screen; the text of a running request is saved."""
        await self.chat_screen.action_leave()

    def on_exit_app(self) -> None:
        """The app is being closed, perhaps from outside: save the answer so far, leave no picture in the terminal."""
        self.chat_screen.leave_answer()
        self.chat_screen.composer.keep_draft()
        self.chat_screen.delete_pictures()

    def _heed_signals(self) -> None:
        """Exit cleanly on SIGHUP and SIGTERM, when the terminal goes away or the process is told to terminate."""
        loop = asyncio.get_running_loop()
        for number in ("SIGHUP", "SIGTERM"):
            if (found := getattr(signal, number, None)) is not None:
                try:
                    loop.add_signal_handler(found, self._leave_for_signal)
                except (RuntimeError, ValueError):  # not supported on Windows or outside the main thread
                    return

    def _leave_for_signal(self) -> None:
        ending = threading.Timer(LAST_S, os._exit, (HANGUP_CODE,))
        ending.daemon = True  # does nothing if the process ends by itself
        ending.start()
        self.chat_screen.leave_answer()
        self.state.autosave.flush()
        self.exit(HANGUP_CODE, return_code=HANGUP_CODE)


def ansi_colour(environ: Mapping[str, str]) -> bool | None:
    """The value for `App(ansi_color=...)`: True without colours, else None to follow the theme.

    By default Textual turns colours into greys, and under an ansi theme into black on black; True omits all colours.
    """
    return True if "NO_COLOR" in environ else None


def has_few_colours(environ: Mapping[str, str]) -> bool:
    """Whether a terminal has 16 colours at most, as far as the environment says."""
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return False
    return environ.get("TERM", "").lower() in FEW_COLOUR_TERMS or environ.get("TERM", "").endswith("-16color")


def is_too_small(width: int, height: int) -> bool:
    """Whether a terminal of this size is too small to use."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


class TooSmallScreen(ModalScreen[None]):
    """Covers a terminal that is too small for anything else; closed when it is enlarged."""

    DEFAULT_CSS = """
    TooSmallScreen { background: $background; align: center middle; }
    TooSmallScreen Static { width: auto; max-width: 100%; height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_mount(self) -> None:
        self.say(self.app.size)

    def say(self, size: Size) -> None:
        """Show the current and the required size. During a resize, `App.size` is still the previous size."""
        found = f"the terminal has {size.width}x{size.height} cells; {LEAST_WIDTH}x{LEAST_HEIGHT} are needed"
        self.query_one(Static).update(found)
