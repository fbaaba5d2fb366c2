"""What snapshot tests share: the fixture's type, the sizes, and waiting until a chat screen is quiet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import TextArea

from edgeinfer.app.tui.app import ChatApp
from tests.app.tui.flows import wait_until

NORMAL, SMALL, LARGE = (100, 40), (40, 12), (200, 60)


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(
        self,
        app: App[int] | App[None],
        *,
        terminal_size: tuple[int, int],
        run_before: Callable[[Pilot[int]], Awaitable[None]],
    ) -> bool: ...


def chat_of(pilot: Pilot[int]) -> ChatApp:
    """The app that is driven."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    return app


async def opened(pilot: Pilot[int]) -> None:
    """The model is open, and what the context holds is counted."""
    app = chat_of(pilot)
    await wait_until(pilot, lambda: app.state.model is not None and app.chat_screen.context_bar.text)
    await counted(pilot)


async def counted(pilot: Pilot[int]) -> None:
    """What the context holds is counted, and all is drawn."""
    app = chat_of(pilot)
    app.chat_screen.look_at_context()
    await pilot.pause()
    await app.workers.wait_for_complete([worker for worker in app.workers if worker.group == "context"])
    await pilot.pause()


async def send(pilot: Pilot[int], text: str) -> None:
    """Send a line."""
    area = chat_of(pilot).chat_screen.query_one(TextArea)
    area.clear()
    area.insert(text)
    await pilot.pause()
    await pilot.press("enter")


async def say(pilot: Pilot[int], text: str) -> None:
    """Send a line, and wait until it is answered."""
    await send(pilot, text)
    screen = chat_of(pilot).chat_screen
    await wait_until(pilot, lambda: screen.writing is None and not screen.prompted)
