"""What tests of the app do over and over: wait for what comes by itself, say something, look at the branch."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.pilot import Pilot
from textual.widgets import TextArea

from edgeinfer.app.sessions.records import KeptMessage
from edgeinfer.app.tui.app import ChatApp
from tests.waiting import PATIENCE_S


async def wait_until(pilot: Pilot[object], happened: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Let the app run until `happened()` is true. Fails, with the reason it was given for, after `patience_s`."""
    ends = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > ends:
            raise AssertionError(f"not within {patience_s} s: {getattr(happened, '__name__', happened)}")
        await pilot.pause(0.01)
    await pilot.pause()


async def say(pilot: Pilot[int], text: str) -> None:
    """Type a line and send it."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    area = app.chat_screen.query_one(TextArea)
    area.clear()
    area.insert(text)
    await pilot.pause()
    await pilot.press("enter")


async def quiet(app: ChatApp, pilot: Pilot[int]) -> None:
    """Until nothing is being written and nothing waits."""
    await wait_until(pilot, lambda: app.chat_screen.writing is None and not app.chat_screen.prompted)


def branch(app: ChatApp) -> list[tuple[str, str]]:
    """Who said what, in the branch that is shown, as it is kept."""
    number = app.chat_screen.chat.number
    assert number is not None
    kept = {message.number: message for message in app.state.store.messages(number)}
    return [(message.role, kept[message.number].text) for message in app.chat_screen.chat.branch]


def last(app: ChatApp) -> KeptMessage:
    return app.chat_screen.chat.branch[-1]
