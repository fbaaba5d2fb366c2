"""What is shown while an answer waits: opening the model, reading the prompt; and the way back to the last chat."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.step_clock import FULL
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.text.drawing import Drawer, Palette
from edgeinfer.settings import Settings
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel
from tests.app.tui.test_first_start import Make, page

SIZE = (100, 40)


@pytest.fixture
def make(home: Path, tmp_path: Path) -> Iterator[Make]:
    with chat_app(tmp_path / "app") as made:
        yield made


def under_answer(app: ChatApp) -> str:
    answer = app.chat_screen.transcript.last_answer
    return "" if answer is None else "\n".join(strip.text for strip in answer.draw(Drawer(90, Palette())))


async def test_a_question_sent_early_says_how_far_the_model_is(make: Make) -> None:
    ready, script = threading.Event(), Script("Hello")

    def slow(settings: Settings, face: WatchedFace) -> LoadedModel:
        with face.loading() as progress:
            progress("packing weights", 50, 200)
            ready.wait(60)
        return LoadedModel(ScriptedModel(script))

    app = make(script, opening=slow)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Hi")
        await wait_until(pilot, lambda: f"first the model: packing weights {FULL}" in under_answer(app))
        ready.set()
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "Hello")
        assert "first the model" not in under_answer(app)


async def test_reading_a_long_prompt_shows_how_far_it_is(make: Make) -> None:
    script = Script("Hello")
    script.reading, script.reading_what = (256, 1000), "reading the prompt"
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "Hi")
        await wait_until(pilot, lambda: "256 of 1,000" in under_answer(app))
        assert "Escape stops" in under_answer(app)
        script.reading = None
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "Hello")


async def new_chat(app: ChatApp, pilot: Pilot[int]) -> None:
    await pilot.press("ctrl+n")
    await wait_until(pilot, lambda: app.chat_screen.first_page.display)
    await pilot.pause()


@pytest.mark.parametrize("how", ["alt+r", "/resume", "/last"])
async def test_the_last_chat_is_one_key_away(make: Make, how: str) -> None:
    app = make(Script("Hello", "Bye"))
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await pilot.pause()
        assert "last chat" not in page(app)
        await say(pilot, "Remember the lighthouse")
        await quiet(app, pilot)
        await new_chat(app, pilot)
        assert "Alt+R goes on with the last chat: “Remember the lighthouse”." in page(app)
        if how.startswith("/"):
            await say(pilot, how)
        else:
            await pilot.press(how)
        await wait_until(pilot, lambda: len(branch(app)) == 2)
        assert branch(app)[0] == ("user", "Remember the lighthouse")
        await say(pilot, "Go on")
        await quiet(app, pilot)
        assert len(branch(app)) == 4


async def test_the_open_chat_is_not_the_last_one(make: Make) -> None:
    app = make(Script("One", "Two"))
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "first")
        await quiet(app, pilot)
        await new_chat(app, pilot)
        await say(pilot, "second")
        await quiet(app, pilot)
        await pilot.press("alt+r")
        await wait_until(pilot, lambda: branch(app)[0] == ("user", "first"))


async def test_why_an_answer_failed_stays_under_it(make: Make) -> None:
    app = make(Script(["Half ", "<fail>"]))
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await wait_until(pilot, lambda: "failed" in under_answer(app))
        assert "the device broke down" in under_answer(app)
        assert branch(app)[-1] == ("assistant", "Half ")
