"""A terminal that is too small says so, in its size of now, and loses nothing; NO_COLOR leaves every colour out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.color import ColorType
from rich.segment import Segment
from textual.pilot import Pilot
from textual.widgets import Static, TextArea

from edgeinfer.app.tui.app import ChatApp, TooSmallScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script


@pytest.fixture
def app(home: Path) -> Iterator[ChatApp]:
    """The app with a scripted model."""
    with chat_app(home) as make:
        yield make(Script("one [red]two[/red]\n\n```python\nprint(1)\n```\n"))


def shown(app: ChatApp) -> str:
    """What the cover says."""
    covers = isinstance(app.screen, TooSmallScreen) and app.screen.query(Static)
    return str(covers.first().content) if covers else ""


def drawn(app: ChatApp) -> list[Segment]:
    """The pieces of text on the screen, with their styles."""
    return [piece for strip in app.screen._compositor.render_strips() for piece in strip]


async def resized(pilot: Pilot[int], width: int, height: int) -> None:
    """Give the terminal another size, and wait for the cover to say it."""
    await pilot.resize_terminal(width, height)
    app = pilot.app
    assert isinstance(app, ChatApp)
    await wait_until(pilot, lambda: shown(app) == f"the terminal has {width}x{height} cells; 40x12 are needed")


async def test_what_is_written_is_there_again(app: ChatApp) -> None:
    async with app.run_test(size=(60, 20)) as pilot:
        await wait_until(pilot, lambda: isinstance(app.focused, TextArea))
        await pilot.press(*"kept")
        await resized(pilot, 30, 8)
        await pilot.press(*"lost", "enter")
        await resized(pilot, 39, 40)
        await resized(pilot, 200, 11)
        await pilot.resize_terminal(40, 12)
        await wait_until(pilot, lambda: isinstance(app.focused, TextArea))
        await pilot.press("!")
        assert app.screen is app.chat_screen
        assert isinstance(app.focused, TextArea)
        assert app.focused.text == "kept!"
        assert app.chat_screen.chat.branch == ()


async def test_it_may_be_too_small_from_the_start(app: ChatApp) -> None:
    async with app.run_test(size=(30, 8)) as pilot:
        await wait_until(pilot, lambda: "30x8" in shown(app))
        await pilot.resize_terminal(60, 20)
        await wait_until(pilot, lambda: app.screen is app.chat_screen)


@pytest.mark.parametrize("theme", ["textual-dark", "ansi-dark"])
async def test_no_colour_is_written(home: Path, monkeypatch: pytest.MonkeyPatch, theme: str) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with chat_app(home) as make:
        app = make(Script("one\n\n```python\nprint(1)\n```\n"), theme=theme)
        async with app.run_test(size=(80, 24)) as pilot:
            await wait_until(pilot, lambda: isinstance(app.focused, TextArea))
            await pilot.press(*"Hi", "enter")
            await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 2 and app.chat_screen.writing is None)
            await wait_until(pilot, lambda: "print(1)" in "".join(piece.text for piece in drawn(app)))
            pieces = drawn(app)
            styles = [piece.style for piece in pieces if piece.style is not None]
            colours = {colour for style in styles for colour in (style.color, style.bgcolor) if colour is not None}
            assert {colour.type for colour in colours} <= {ColorType.DEFAULT}
