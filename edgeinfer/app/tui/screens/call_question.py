"""The question whether an answer may call a tool, at the bottom of the screen.

In: the tool and its arguments, all of which can be read. Out: what the person says. Keys count only after a pause
without any: what is being typed while the question appears must not answer it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from edgeinfer.app.mcp.answering import Permission
from edgeinfer.app.tui.text.calls import readable
from edgeinfer.app.tui.text.neutral import neutral

PAUSE_S = 0.6
"""Seconds without a key after which keys count."""
KEYS = "y: call it once · a: always for this tool · n: no · Escape: stop the answer"


ANSWERS = {"y": Permission.ONCE, "a": Permission.FROM_NOW_ON, "n": Permission.NO, "escape": None}


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call to be allowed, by the names that the server has for itself and its tool."""

    server: str
    tool: str
    arguments: str


class CallQuestion(ModalScreen[Permission | None]):
    """Asks whether a tool may be called; closed by one of the keys in ANSWERS, with None to stop the answer."""

    DEFAULT_CSS = """
    CallQuestion { align: center bottom; background: transparent; }
    CallQuestion > Vertical {
        width: 100%; height: auto; padding: 0 1; background: $surface; border-top: solid $warning;
    }
    CallQuestion VerticalScroll { height: auto; max-height: 50vh; }
    CallQuestion .call-head { color: $text-warning; }
    CallQuestion Static { height: auto; }
    """
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, call: AskedCall) -> None:
        super().__init__()
        self._call = call
        self._quiet_since_s = time.monotonic()

    def compose(self) -> ComposeResult:
        call = self._call
        head = neutral(f"The answer wants to call {call.tool} of {call.server} with")
        with Vertical():
            yield Static(head, classes="call-head", markup=False)
            with VerticalScroll():
                yield Static(neutral(readable(call.arguments)), markup=False)
            yield Static(KEYS, markup=False)

    def on_key(self, event: events.Key) -> None:
        """Answer with a key; arrows scroll, and Ctrl+Q leaves the app as on every screen."""
        if event.key == "ctrl+q":
            return
        now = time.monotonic()
        was_quiet, self._quiet_since_s = now - self._quiet_since_s >= PAUSE_S, now
        if event.key in ("up", "down", "pageup", "pagedown", "home", "end"):
            return
        event.stop()
        event.prevent_default()
        if was_quiet and event.key in ANSWERS:
            self.dismiss(ANSWERS[event.key])
