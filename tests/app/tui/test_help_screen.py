"""The help: every command with its key, also one that was changed; read by keys on any terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Static, TextArea

from edgeinfer.app.chat.commands import COMMANDS, GROUPS
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.help import HelpScreen, help_text
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]
WIDE = 200


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


def line_of(text: str, explanation: str) -> str:
    return next(line for line in text.splitlines() if line.endswith(explanation))


@pytest.mark.parametrize("width", [WIDE, 76, 36])
def test_every_command_is_in_it(width: int) -> None:
    text = help_text({}, width).plain
    words = " ".join(text.split())
    for command in COMMANDS:
        assert " ".join(command.help.split()) in words
        assert f"/{command.form}" in text if command.form else True
    for heading in GROUPS.values():
        assert f"\n{heading}\n" in text


def test_keys_stand_by_their_commands() -> None:
    text = help_text({}, WIDE).plain
    assert line_of(text, "regenerate the answer").split()[:2] == ["Ctrl+R", "/regen"]
    assert line_of(text, "stop the answer; the text so far stays").startswith("Escape ")


def test_no_column_runs_into_the_next() -> None:
    for command in COMMANDS:
        line = line_of(help_text({}, WIDE).plain, command.help)
        assert line.removesuffix(command.help)[-1] == " "


def test_no_line_is_too_wide_for_a_narrow_terminal() -> None:
    assert all(len(line) <= 36 for line in help_text({}, 36).plain.splitlines())


def test_what_does_not_fit_goes_on_under_itself() -> None:
    lines = help_text({}, 76).plain.splitlines()
    begun = next(i for i, line in enumerate(lines) if line.startswith("Enter "))
    assert all(len(line) <= 76 for line in lines)
    assert any(line.startswith(" " * 36) and line.strip() for line in lines)
    assert lines[begun].split()[0] == "Enter"


async def test_a_key_that_was_changed_is_shown(make: Make) -> None:
    app = make(Script(), keys=("regen=f9",))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        text = str(app.screen.query_one("#help-text", Static).content)
        assert line_of(text, "regenerate the answer").split()[:2] == ["F9", "/regen"]
        assert "Ctrl+R" not in text


async def test_keys_of_other_screens_can_be_changed_too(make: Make) -> None:
    app = make(Script(), keys=("help.back=f8", "composer.send=f7"))
    async with app.run_test(size=(100, 40)) as pilot:
        app.chat_screen.query_one(TextArea).insert("/help")
        await pilot.press("f7")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("f8")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)


@pytest.mark.parametrize("key", ["escape", "q", "f1"])
async def test_keys_leave_it(make: Make, key: str) -> None:
    app = make(Script())
    async with app.run_test(size=(100, 40)) as pilot:
        app.chat_screen.query_one(TextArea).insert("/help")
        await pilot.pause()
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press(key)
        await wait_until(pilot, lambda: app.screen is app.chat_screen)


async def test_it_scrolls_by_keys_in_the_smallest_terminal(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=(40, 12)) as pilot:
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        scroll = app.screen.query_one(VerticalScroll)
        assert scroll.has_focus
        await wait_until(pilot, lambda: scroll.max_scroll_y > 0)
        assert scroll.max_scroll_x == 0
        await pilot.press("end")
        await wait_until(pilot, lambda: scroll.scroll_y == scroll.max_scroll_y)
