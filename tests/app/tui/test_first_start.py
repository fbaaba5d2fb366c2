"""The first start of the app: what stands there, what moves, and the question before anything is fetched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from textual.pilot import Pilot

from edgeinfer.app.opening.face import Download, WatchedFace
from edgeinfer.app.tui.actions import switching
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel, Opening
from edgeinfer.app.tui.screens.questions import DownloadQuestion
from edgeinfer.settings import Settings
from edgeinfer.steps import COMPILING
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel

SIZES = [(100, 40), (40, 12)]
STARTER = Download("Tiny-1M", "pypi:tiny", 92_900_000)


class Make(Protocol):
    def __call__(self, script: Script, opening: Opening | None = None, **overrides: object) -> ChatApp: ...


@pytest.fixture
def make(home: Path, tmp_path: Path) -> Iterator[Make]:
    with chat_app(tmp_path / "app") as made:
        yield made


def page(app: ChatApp) -> str:
    return str(app.chat_screen.first_page.render())


def asking(script: Script, fetched: list[bool]) -> Opening:
    """Opens a model that would have to be fetched."""

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        face.agree(STARTER)
        fetched.append(True)
        return LoadedModel(ScriptedModel(script))

    return opening


async def asked(app: ChatApp, pilot: Pilot[int]) -> None:
    await wait_until(pilot, lambda: isinstance(app.screen, DownloadQuestion))


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_page_says_what_can_be_done_and_goes_with_the_first_message(
    make: Make, size: tuple[int, int]
) -> None:
    app = make(Script("Hello"))
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await pilot.pause()
        assert app.chat_screen.first_page.display
        for words in ("answers, on", "Ask anything", "@ attaches", "/ lists", "F1 help", "Ctrl+Q leave"):
            assert words in page(app)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert not app.chat_screen.first_page.display
        assert app.chat_screen.transcript.display
        await wait_until(pilot, lambda: app.chat_screen.transcript.is_drawn)
        assert branch(app)[-1] == ("assistant", "Hello")
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat_screen.first_page.display)
        await say(pilot, "Hi again")
        await quiet(app, pilot)
        await wait_until(pilot, lambda: not app.chat_screen.first_page.display)


async def test_a_long_step_goes_on_moving_and_one_may_send_meanwhile(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switching, "REDRAW_S", 0.02)
    ready, script = threading.Event(), Script("Hello")

    def slow(settings: Settings, face: WatchedFace) -> LoadedModel:
        face.chosen("Tiny-1M", 98_400_000)
        with face.loading() as progress:
            progress(COMPILING, 0, 9)
            ready.wait(60)
        return LoadedModel(ScriptedModel(script))

    app = make(script, opening=slow)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: COMPILING in page(app))
        assert "Opening Tiny-1M, 98.4 MB." in page(app)
        assert "You can type and send already" in page(app)
        seen = set[str]()

        def moved() -> bool:
            seen.add(page(app))
            return len(seen) > 2

        await wait_until(pilot, moved, 60)
        await say(pilot, "Hi")
        titles = set[str]()

        def title_moved() -> bool:
            titles.add(app.state.opening_text)
            return len(titles) > 1

        await wait_until(pilot, title_moved, 60)
        ready.set()
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "Hello")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("key", ["enter", "y"])
async def test_nothing_is_fetched_before_a_yes(make: Make, key: str, size: tuple[int, int]) -> None:
    fetched, script = list[bool](), Script("Hello")
    app = make(script, opening=asking(script, fetched))
    async with app.run_test(size=size) as pilot:
        await asked(app, pilot)
        shown = " ".join(str(widget.render()) for widget in app.screen.query("Static"))
        assert all(words in shown for words in ("Tiny-1M", "pypi:tiny", "92.9 MB"))
        await pilot.press("x")
        assert isinstance(app.screen, DownloadQuestion)
        assert fetched == []
        await pilot.press(key)
        await wait_until(pilot, lambda: app.state.model is not None)
        assert fetched == [True]


async def test_a_no_says_what_else_works(make: Make) -> None:
    fetched, script = list[bool](), Script("Hello")
    app = make(script, opening=asking(script, fetched))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot)
        await pilot.press("n")
        await wait_until(pilot, lambda: "No model is open" in page(app))
        assert fetched == []
        assert "Ctrl+L" in page(app)
        assert "edgeinfer pull" in page(app)


async def test_leaving_while_the_question_stands_ends_the_engine(make: Make) -> None:
    fetched, script = list[bool](), Script("Hello")
    app = make(script, opening=asking(script, fetched))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot)
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: not app.is_running)
    assert app.chat_screen.engine.close(60)
    assert fetched == []
