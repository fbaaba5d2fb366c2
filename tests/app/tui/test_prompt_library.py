"""Saved prompts in the app: made from the input, used with their fields asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.personas import SavedPromptsScreen
from edgeinfer.app.tui.screens.prompt_fields import PromptFieldsScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, quiet, say, wait_until
from tests.app.tui.scripted import Script
from tests.app.tui.test_first_start import Make

SIZES = [pytest.param((100, 40), id="wide"), pytest.param((40, 12), id="small")]
TEXT = "Translate into {{to: English}}, in the style of {{style}}: {{to}}!"


@pytest.fixture
def make(home: Path, tmp_path: Path) -> Iterator[Make]:
    with chat_app(tmp_path / "app") as made:
        yield made


async def ready(app: ChatApp, pilot: Pilot[int]) -> None:
    await wait_until(pilot, lambda: app.state.model is not None)


@pytest.mark.parametrize("size", SIZES)
async def test_fields_are_asked_for_and_the_prompt_stands_in_the_input(make: Make, size: tuple[int, int]) -> None:
    app = make(Script("Yes"))
    app.state.prompts.save("translate", TEXT)
    async with app.run_test(size=size) as pilot:
        await ready(app, pilot)
        await say(pilot, "/prompts translate")
        await wait_until(pilot, lambda: isinstance(app.screen, PromptFieldsScreen))
        first, second = app.screen.query(Input)
        assert (first.value, second.value) == ("English", "")
        await pilot.press("enter", *"Ada", "enter")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        wanted = "Translate into English, in the style of Ada: English!"
        assert app.chat_screen.composer.draft.text == wanted
        assert app.chat_screen.chat.branch == ()
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat_screen.chat.branch)
        await quiet(app, pilot)
        assert branch(app)[0] == ("user", wanted)


async def test_escape_leaves_the_input_as_it_was(make: Make) -> None:
    app = make(Script())
    app.state.prompts.save("translate", TEXT)
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(app, pilot)
        app.chat_screen.composer.put("half a question")
        await pilot.press("f5")
        await wait_until(pilot, lambda: isinstance(app.screen, SavedPromptsScreen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, PromptFieldsScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        assert app.chat_screen.composer.draft.text == "half a question"


async def test_a_new_one_is_made_from_the_input_and_needs_no_fields(make: Make, home: Path) -> None:
    app = make(Script())
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(app, pilot)
        app.chat_screen.composer.put("Explain it to a child.")
        await pilot.press("f5")
        await wait_until(pilot, lambda: isinstance(app.screen, SavedPromptsScreen))
        await pilot.press("n", *"child", "ctrl+s")
        shown = app.screen.query_one(OptionList)
        await wait_until(pilot, lambda: shown.option_count == 1)
        assert [path.read_text() for path in home.rglob("prompts/child.md")] == ["Explain it to a child.\n"]
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        assert app.chat_screen.composer.draft.text == "Explain it to a child."


async def test_an_unknown_name_says_what_there_is(make: Make) -> None:
    app = make(Script())
    app.state.prompts.save("translate", TEXT)
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(app, pilot)
        await say(pilot, "/prompts nothing")
        await wait_until(
            pilot, lambda: any("no prompt is called 'nothing'" in note.message for note in app._notifications)
        )
