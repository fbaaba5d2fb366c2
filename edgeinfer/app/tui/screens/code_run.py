"""Runs a code block, or pipes it into a command, once the user has said yes to exactly that.

In: a command, the code. Out: the output, if it is to be attached to the next message. Keys count only after a pause
without any: what is being typed while the question appears must not answer it. There is no "always".
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, Static

from edgeinfer.app.chat.code_running import CodeCommand, RunningCode
from edgeinfer.app.tui.clipboard import copy
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.errors import EdgeInferError

PAUSE_S = 0.6
"""Seconds without a key after which keys count."""
DRAW_S = 0.2
"""Time between new output and its draw."""


class CodeRunScreen(Screen[str | None]):
    """First the command and the code with a question, then the output."""

    DEFAULT_CSS = """
    CodeRunScreen #code-head { height: auto; padding: 0 1; color: $text-warning; border-bottom: solid $warning; }
    CodeRunScreen #code-text { padding: 0 1; }
    CodeRunScreen.-begun #code-head { color: $text; border-bottom: solid $primary; }
    """
    AUTO_FOCUS = "#code-scroll"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "yes", "yes, run it", id="code.yes"),
        Binding("n", "refuse", "no", id="code.no"),
        Binding("a", "attach", "attach the output", id="code.attach"),
        Binding("c,ctrl+y", "copy", "copy", id="code.copy"),
        Binding("escape", "leave", "stop, back", id="code.back"),
    ]

    def __init__(self, command: CodeCommand, code: str) -> None:
        super().__init__()
        self._code_run = RunningCode(command, code)
        self._has_begun = False
        self._reason = ""
        self._quiet_since_s = time.monotonic()
        self._drawing: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static(neutral(self._question), id="code-head", markup=False)
        with VerticalScroll(id="code-scroll"):
            yield Static(neutral(self._code_run.text), id="code-text", markup=False)
        yield Footer()

    @property
    def _question(self) -> str:
        lines = self._code_run.text.count("\n") or 1
        return (
            f"Run  {self._code_run.command.shown}  in {Path.cwd()} with these {lines} lines on its standard input?\n"
            "The code was written by a model. It can do all that you can: read, change and send your files."
        )

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, or could not be started."""
        return self._code_run.code is not None or bool(self._reason)

    def on_key(self, event: events.Key) -> None:
        """Let y through only after a pause."""
        now = time.monotonic()
        was_quiet, self._quiet_since_s = now - self._quiet_since_s >= PAUSE_S, now
        if event.key == "y" and not self._has_begun and not was_quiet:
            event.stop()
            event.prevent_default()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which keys are active."""
        if action in ("yes", "refuse"):
            return not self._has_begun
        return self.is_over and bool(self._code_run.output) if action in ("attach", "copy") else True

    def action_yes(self) -> None:
        """Run it."""
        self._has_begun = True
        self.add_class("-begun")
        self._show()
        self.refresh_bindings()
        self.run_code()

    @work(group="code")
    async def run_code(self) -> None:
        """Run to the end, or until this screen is closed."""
        try:
            await self._code_run.run(self._grown)
        except EdgeInferError as error:
            self._reason = str(error)
        self._show()
        self.refresh_bindings()

    def action_refuse(self) -> None:
        """Close the screen; nothing was run."""
        self.dismiss(None)

    async def action_leave(self) -> None:
        """Close the screen; a process that runs is stopped first, and its output stays to be read."""
        if self._has_begun and not self.is_over:
            await self._code_run.stop()
            return
        self.dismiss(None)

    def action_attach(self) -> None:
        """Close the screen and attach the output."""
        self.dismiss(self._code_run.output)

    @work(group="clipboard")
    async def action_copy(self) -> None:
        """Copy the output."""
        copied = await copy(self.app, self._code_run.output)
        self.notify(copied.notice, markup=False)

    async def on_unmount(self) -> None:
        """The app is being closed."""
        await self._code_run.stop()

    def _grown(self) -> None:
        if self._drawing is None:
            self._drawing = self.set_timer(DRAW_S, self._show)

    def _show(self) -> None:
        if not self.is_attached:  # the app is being closed
            return
        self._drawing = None
        running = self._code_run
        if self._reason:
            state = self._reason
        elif running.code is None:
            state = "running; Escape stops it"
        else:
            ended = "stopped" if running.was_stopped else f"ended with code {running.code}"
            state = f"{ended}{', the output is cut' if running.is_cut else ''}"
        self.query_one("#code-head", Static).update(neutral(f"{running.command.shown}: {state}"))
        output = running.output or ("no output" if self.is_over and not self._reason else "")
        self.query_one("#code-text", Static).update(neutral(output))
        self.query_one("#code-scroll", VerticalScroll).scroll_end(animate=False)
