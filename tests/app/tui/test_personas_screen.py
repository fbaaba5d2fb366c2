"""The personas screen: made, changed, deleted and brought back in place; the one chosen answers the next question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static, TextArea

from edgeinfer.app.chat.personas import NamedText
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.personas import PersonasScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]
SIZE = (100, 40)


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


async def opened(pilot: Pilot[int]) -> None:
    """The personas are shown."""
    await wait_until(pilot, lambda: pilot.app.screen.is_mounted and not isinstance(pilot.app.screen, PersonasScreen))
    await pilot.press("f4")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, PersonasScreen))
    await pilot.pause()


def names(pilot: Pilot[int]) -> list[str]:
    return [str(option.prompt) for option in pilot.app.screen.query_one(OptionList).options]


def hint(pilot: Pilot[int]) -> str:
    return str(pilot.app.screen.query_one("#persona-hint", Static).content)


def text(pilot: Pilot[int]) -> TextArea:
    return pilot.app.screen.query_one(TextArea)


def kept(app: ChatApp) -> list[NamedText]:
    return list(app.state.personas.all())


async def test_one_is_made_from_the_system_prompt_in_use(make: Make) -> None:
    app = make(Script(), system="Be brief.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert hint(pilot) == PersonasScreen.none_yet
        await pilot.press("n")
        assert pilot.app.screen.query_one(Input).has_focus
        assert text(pilot).text == "Be brief."
        await pilot.press(*"Short", "ctrl+s")
        await wait_until(pilot, lambda: names(pilot) == ["Short"])
        assert kept(app) == [NamedText("Short", "Be brief.")]


async def test_enter_goes_from_the_name_to_the_text(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("n", *"Short", "enter")
        assert text(pilot).has_focus
        await pilot.press(*"Be brief.", "enter", *"Always.", "ctrl+s")
        await wait_until(pilot, lambda: kept(app) == [NamedText("Short", "Be brief.\nAlways.")])


async def test_a_name_that_cannot_be_one_is_said_and_nothing_is_lost(make: Make) -> None:
    app = make(Script(), system="Be brief.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("n", "slash", "x", "ctrl+s")
        assert "cannot be called '/x'" in hint(pilot)
        assert app.screen.has_class("-editing")
        assert text(pilot).text == "Be brief."
        assert kept(app) == []


async def test_one_is_changed(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Speak like a pirate.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert text(pilot).text == "Speak like a pirate."
        await pilot.press("e")
        assert text(pilot).has_focus
        text(pilot).text = "Arr."
        await pilot.press("ctrl+s")
        assert kept(app) == [NamedText("Pirate", "Arr.")]
        assert text(pilot).read_only
        assert text(pilot).text == "Arr."
        assert app.screen.query_one(OptionList).has_focus


async def test_escape_leaves_one_as_it_was(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Speak like a pirate.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("e")
        text(pilot).text = "Arr."
        await pilot.press("escape")
        assert kept(app) == [NamedText("Pirate", "Speak like a pirate.")]
        assert text(pilot).text == "Speak like a pirate."
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)


async def test_another_name_is_the_same_persona(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Arr.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("e")
        app.screen.query_one(Input).value = "Captain"
        await pilot.press("ctrl+s")
        assert kept(app) == [NamedText("Captain", "Arr.")]


async def test_a_name_that_another_one_has_is_refused(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Arr.")
    app.state.personas.save("Zen", "Sit.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("n", *"zen", "ctrl+s")
        assert hint(pilot) == "there is one called Zen already"
        await pilot.press("escape", "e")
        app.screen.query_one(Input).value = "Zen"
        await pilot.press("ctrl+s")
        assert hint(pilot) == "there is one called Zen already"
        assert kept(app) == [NamedText("Pirate", "Arr."), NamedText("Zen", "Sit.")]


async def test_one_is_deleted_and_brought_back(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Arr.")
    app.state.personas.save("Zen", "Sit.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("delete")
        await wait_until(pilot, lambda: names(pilot) == ["Zen"])
        assert "Pirate is deleted; u brings it back" in hint(pilot)
        assert text(pilot).text == "Sit."
        await pilot.press("u")
        await wait_until(pilot, lambda: names(pilot) == ["Pirate", "Zen"])
        assert app.screen.query_one(OptionList).highlighted == 0
        assert kept(app) == [NamedText("Pirate", "Arr."), NamedText("Zen", "Sit.")]


async def test_the_last_one_is_deleted_and_can_be_brought_back(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Arr.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("delete")
        assert names(pilot) == []
        assert text(pilot).text == ""
        assert "u brings it back" in hint(pilot)
        await pilot.press("delete", "e", "u")
        await wait_until(pilot, lambda: names(pilot) == ["Pirate"])


async def test_the_one_chosen_answers_the_next_question(make: Make) -> None:
    script = Script("Sitting.")
    app = make(script)
    app.state.personas.save("Pirate", "Arr.")
    app.state.personas.save("Zen", "Sit.")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        await pilot.press("H", "i", "enter")
        await wait_until(pilot, lambda: script.asked)
        assert [(message.role, message.content) for message in script.asked[0]] == [("system", "Sit."), ("user", "Hi")]


async def test_one_can_be_named_in_a_command(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Pirate", "Arr.")
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, lambda: app.screen is app.chat_screen and app.chat_screen.is_mounted)
        app.chat_screen.query_one(TextArea).insert("/persona pirate")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat_screen.chat.system == "Arr.")


async def test_control_characters_and_markup_of_files_are_only_text(make: Make) -> None:
    app = make(Script())
    app.state.personas.save("Hostile", "x\x1b[31m[bold]y[/]")
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert "[bold]y[/]" in text(pilot).text
        assert "\x1b" not in text(pilot).text


async def test_it_can_be_used_in_the_smallest_terminal(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(40, 12)) as pilot:
        await opened(pilot)
        await pilot.press("n", *"Short", "tab", *"Hi", "ctrl+s")
        await wait_until(pilot, lambda: kept(app) == [NamedText("Short", "Hi")])
