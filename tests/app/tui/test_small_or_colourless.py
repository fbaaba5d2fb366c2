"""A terminal that is too small says so, in its size of now, and loses nothing; NO_COLOR leaves every colour out.

What is chosen is seen without colours all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, OptionList, Static, TextArea, Tree

from edgeinfer.app.tui.app import (
    LEAST_HEIGHT,
    LEAST_WIDTH,
    NO_COLOUR_CSS,
    ChatApp,
    TooSmallScreen,
    ansi_colour,
    is_too_small,
)
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


class Bare(App[None]):
    """One widget of each kind that has a cursor."""

    CSS = NO_COLOUR_CSS + "\nOptionList, Tree, DataTable, TextArea { height: 4; }"

    def compose(self) -> ComposeResult:
        yield OptionList("one", "chosen")
        yield Input("typed")
        yield TextArea("written", id="area")
        tree: Tree[None] = Tree("root")
        tree.root.expand()
        tree.root.add_leaf("leaf")
        yield tree
        table: DataTable[str] = DataTable(cursor_type="row")
        table.add_column("heading")
        table.add_row("cell")
        yield table


def styles_of(app: App[None], text: str) -> list[Style]:
    """The styles in which pieces of text with these words are drawn."""
    strips = app.screen._compositor.render_strips()
    return [piece.style for strip in strips for piece in strip if text in piece.text and piece.style is not None]


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light", "ansi-dark"])
@pytest.mark.parametrize(
    ("kind", "keys", "seen"),
    [
        (OptionList, ["down"], "chosen"),
        (Input, ["home", "shift+end"], "typed"),
        (TextArea, ["ctrl+a", "shift+end"], "written"),
        (Tree, ["down"], "leaf"),
        (DataTable, [], "cell"),
    ],
)
async def test_the_cursor_is_seen(
    monkeypatch: pytest.MonkeyPatch, theme: str, kind: type[OptionList], keys: list[str], seen: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Bare(ansi_color=ansi_colour({"NO_COLOR": "1"}))
    async with app.run_test(size=(40, 24)) as pilot:
        app.theme = theme
        app.query_one(kind).focus()
        await pilot.press(*keys)
        await pilot.pause()
        drawn = styles_of(app, seen)
        assert drawn
        assert any(style.reverse or style.underline for style in drawn)


@pytest.mark.parametrize("theme", ["textual-dark", "ansi-light"])
async def test_widgets_of_textual_write_no_colour(monkeypatch: pytest.MonkeyPatch, theme: str) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    app = Bare(ansi_color=ansi_colour({"NO_COLOR": ""}))
    async with app.run_test(size=(40, 24)) as pilot:
        app.theme = theme
        await pilot.pause()
        colours = {
            colour.type
            for strip in app.screen._compositor.render_strips()
            for piece in strip
            if piece.style is not None
            for colour in (piece.style.color, piece.style.bgcolor)
            if colour is not None
        }
        assert colours <= {ColorType.DEFAULT}


def test_with_colours_the_theme_decides() -> None:
    assert ansi_colour({}) is None
