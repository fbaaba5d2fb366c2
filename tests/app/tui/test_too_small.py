"""A terminal that is too small says so; what is below stays and comes back with the room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.widgets import Static, TextArea

from edgeinfer.app.tui.app import LEAST_HEIGHT, LEAST_WIDTH, ChatApp, TooSmallScreen, is_too_small
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


def said(app: ChatApp) -> str:
    return str(app.screen.query_one(Static).content)


def test_forty_by_twelve_is_enough() -> None:
    assert (LEAST_WIDTH, LEAST_HEIGHT) == (40, 12)
    assert not is_too_small(40, 12)
    assert is_too_small(39, 100)
    assert is_too_small(100, 11)


async def test_it_comes_and_goes_with_the_room_and_nothing_is_lost(make: Make) -> None:
    script = Script("one two three")
    script.hold()
    app = make(script)
    async with app.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        app.chat_screen.query_one(TextArea).insert("Count")
        await pilot.press("enter")
        await wait_until(pilot, lambda: script.asked)
        app.chat_screen.query_one(TextArea).insert("a draft")
        await pilot.resize_terminal(30, 8)
        await wait_until(pilot, lambda: isinstance(app.screen, TooSmallScreen))
        await wait_until(pilot, lambda: said(app) == "the terminal has 30x8 cells; 40x12 are needed")
        script.go()
        await wait_until(pilot, lambda: app.chat_screen.writing is None)
        await pilot.resize_terminal(39, 30)
        await wait_until(pilot, lambda: said(app) == "the terminal has 39x30 cells; 40x12 are needed")
        await pilot.press("x", "escape")
        await pilot.resize_terminal(40, 12)
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        assert app.chat_screen.composer.draft.text == "a draft"
        assert app.chat_screen.transcript.last_answer.source == "one two three"


async def test_it_begins_too_small_and_goes_on_when_there_is_room(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(20, 5)) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, TooSmallScreen))
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        await wait_until(pilot, lambda: app.state.model is not None)


async def test_it_covers_other_screens_too(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f1")
        await wait_until(pilot, lambda: app.screen is not app.chat_screen)
        below = app.screen
        await pilot.resize_terminal(30, 8)
        await wait_until(pilot, lambda: isinstance(app.screen, TooSmallScreen))
        await pilot.resize_terminal(80, 24)
        await wait_until(pilot, lambda: app.screen is below)


async def test_one_can_leave_from_it(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(20, 5)) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, TooSmallScreen))
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert app.return_value == 0
