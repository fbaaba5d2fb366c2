"""One image alone: opened by a key or a click, as large as there is room; half blocks where nothing better is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions.kept_images import KeptImage, Preview, kept_image
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.picture import PictureLines, PictureScreen, fitted
from edgeinfer.app.tui.widgets.chips import Chips
from edgeinfer.app.tui.widgets.entries import QuestionEntry
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import say, wait_until
from tests.app.tui.scripted import Script
from tests.pictures import picture, picture_file

Make = Callable[..., ChatApp]
SEA = Attachment("sea.png", "", kept_image(picture(640, 480), "sea.png"))


@pytest.fixture
def make(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    picture_file(tmp_path / "sea.png", 640, 480)
    with chat_app(home) as make:
        yield make


def drawn(app: ChatApp) -> list[str]:
    """The lines of the picture; none while it is not shown."""
    return [line.text for lines in app.screen.query(PictureLines) for line in lines._lines]


async def test_enter_shows_an_attached_image_alone_and_escape_leaves_it(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(80, 32)) as pilot:
        await say(pilot, "/attach sea.png")
        await wait_until(pilot, lambda: app.chat_screen.composer.draft.attachments)
        await pilot.press("shift+tab", "enter")
        await wait_until(pilot, lambda: drawn(app))
        assert isinstance(app.screen, PictureScreen)
        assert drawn(app) == ["▀" * 80] * 30
        await pilot.resize_terminal(80, 17)
        await wait_until(pilot, lambda: drawn(app) == ["▀" * 40] * 15)
        await pilot.press("escape")
        assert app.screen is app.chat_screen
        assert app.chat_screen.query_one(Chips).attachments


async def test_a_click_on_a_preview_shows_its_image_alone(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(80, 32)) as pilot:
        shown = app.chat_screen.transcript
        note = Attachment("note.txt", "text")
        await shown.show([QuestionEntry(1, "What is this?", [note, SEA], previews=app.chat_screen.previews)])
        app.chat_screen.first_page.remove_class("-shown")
        await wait_until(pilot, lambda: shown.is_drawn)
        await pilot.click(shown, offset=(4, 0))  # the text file
        assert app.screen is app.chat_screen
        await pilot.click(shown, offset=(4, 3))
        await wait_until(pilot, lambda: drawn(app))
        await pilot.press("q")
        assert app.screen is app.chat_screen


async def test_a_damaged_image_is_told(make: Make) -> None:
    assert SEA.image is not None
    damaged = KeptImage(SEA.image.digest, SEA.image.data[:3000], SEA.image.size, SEA.image.preview)
    app = make(Script())
    async with app.run_test(size=(80, 32)) as pilot:
        app.chat_screen.view(Attachment("sea.png", "", damaged))
        place = "#picture-place Static"
        await wait_until(pilot, lambda: app.screen.query(place))
        assert "cannot be decoded" in str(app.screen.query_one(place).render())


async def test_without_colours_nothing_is_drawn(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make(Script())
    async with app.run_test(size=(80, 32)) as pilot:
        app.chat_screen.view(SEA)
        await wait_until(pilot, lambda: app.screen.query("#picture-place Static"))
        assert drawn(app) == []


@pytest.mark.parametrize(
    ("size", "room", "cell", "cells"),
    [
        ((80, 60), (80, 30), (1, 2), (80, 30)),
        ((400, 200), (100, 28), (8, 16), (100, 25)),
        ((10, 1000), (100, 28), (8, 16), (1, 28)),
        ((1000, 1), (100, 28), (8, 16), (100, 1)),
        ((1, 1), (1000, 1000), (10, 10), (297, 297)),
    ],
)
def test_a_picture_keeps_its_shape(
    size: tuple[int, int], room: tuple[int, int], cell: tuple[int, int], cells: tuple[int, int]
) -> None:
    assert fitted(Preview(size[0], bytes(3 * size[0] * size[1])), room, cell) == cells
