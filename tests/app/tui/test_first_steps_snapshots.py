"""How the screens of the first steps look: the first choice of a model, running code, fields of a saved prompt."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from edgeinfer.app.catalogue.first_models import STARTER_GOOD_AT, FirstModel
from edgeinfer.app.chat.code_running import CodeCommand
from edgeinfer.app.chat.personas import NamedText
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens import code_run, first_model
from edgeinfer.app.tui.screens.code_run import CodeRunScreen
from edgeinfer.app.tui.screens.first_model import FirstModelScreen
from edgeinfer.app.tui.screens.prompt_fields import PromptFieldsScreen
from edgeinfer.models.store import STARTER_NAME
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script
from tests.app.tui.snapshots import NORMAL, SMALL, Compare, chat_of, opened

Make = Callable[..., ChatApp]
ROWS = (
    FirstModel("llama3.2", "llama3.2", "2.02 GB", "fits", "6", "on this computer, from Ollama", is_here=True),
    FirstModel(STARTER_NAME, STARTER_NAME, "98.0 MB", "fits", "~121", STARTER_GOOD_AT),
    FirstModel("hf:a/b", "lfm2.5-1.2b", "731.0 MB", "fits", "~17", "made for CPUs: fast, tools"),
    FirstModel("hf:c/d", "gemma-4-e2b", "4.10 GB", "fits", "~8.6", "recent, made for small devices"),
)
SIZES = [SMALL, NORMAL]
THEMES = ["textual-dark", "textual-light", "ansi-dark"]
CODE = "for number in range(3):\n    print(number)\n"


@pytest.fixture
def make(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(first_model, "first_models", lambda catalogue: ROWS)
    monkeypatch.setattr(code_run, "PAUSE_S", 0.0)
    monkeypatch.chdir(os.sep)
    with chat_app(home) as made:
        yield made


async def choice_shown(pilot: Pilot[int]) -> None:
    await opened(pilot)
    pilot.app.push_screen(FirstModelScreen(chat_of(pilot).chat_screen.catalogue()))
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, FirstModelScreen))
    await wait_until(pilot, lambda: pilot.app.screen.query_one(OptionList).option_count == len(ROWS))
    await pilot.press("down")


async def code_asked(pilot: Pilot[int]) -> None:
    await opened(pilot)
    pilot.app.push_screen(CodeRunScreen(CodeCommand(line="wc -l"), CODE))
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, CodeRunScreen))
    await pilot.pause()


async def code_ran(pilot: Pilot[int]) -> None:
    await code_asked(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, CodeRunScreen)
    await pilot.press("y")
    await wait_until(pilot, lambda: screen.is_over)
    await pilot.pause()


async def fields_asked(pilot: Pilot[int]) -> None:
    await opened(pilot)
    pilot.app.push_screen(PromptFieldsScreen(NamedText("translate", "Translate into {{to: English}}:\n\n{{text}}")))
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, PromptFieldsScreen))
    await pilot.press("enter", *"The sea")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_choice_of_a_model(snap_compare: Compare, make: Make, theme: str, size: tuple[int, int]) -> None:
    assert snap_compare(make(Script(), theme=theme), terminal_size=size, run_before=choice_shown)


def test_choice_without_colour(snap_compare: Compare, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(make(Script()), terminal_size=NORMAL, run_before=choice_shown)


@pytest.mark.skipif(os.name != "posix", reason="a command of a POSIX shell")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("steps", [code_asked, code_ran, fields_asked])
def test_questions(snap_compare: Compare, make: Make, steps: Callable[..., None], size: tuple[int, int]) -> None:
    assert snap_compare(make(Script()), terminal_size=size, run_before=steps)
