"""How the screens around the chat look: help, settings, personas, branches, viewer, machine, too small a terminal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from edgeinfer.app.tui.app import ChatApp, TooSmallScreen
from edgeinfer.app.tui.screens.branches import BranchesScreen
from edgeinfer.app.tui.screens.call_question import AskedCall, CallQuestion
from edgeinfer.app.tui.screens.help import HelpScreen
from edgeinfer.app.tui.screens.machine import MachineScreen
from edgeinfer.app.tui.screens.personas import PersonasScreen
from edgeinfer.app.tui.screens.settings import SettingsScreen
from edgeinfer.app.tui.screens.viewer import ViewerScreen
from edgeinfer.app.tui.widgets.machine_panels import Panel
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.machine_source import Told
from tests.app.tui.scripted import Script
from tests.app.tui.snapshots import NORMAL, SMALL, Compare, chat_of, opened, say

Make = Callable[..., ChatApp]
Steps = Callable[[Pilot[int]], Awaitable[None]]
SIZES = [SMALL, NORMAL]


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


class Machine(App[None]):
    """An app with nothing but the machine screen."""

    def on_mount(self) -> None:
        self.push_screen(MachineScreen(Told()))


async def shown(pilot: Pilot[int], screen: type[Screen[object]], *keys: str) -> None:
    """A screen that these keys open."""
    await opened(pilot)
    await pilot.press(*keys)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, screen))
    await pilot.pause()


async def help_shown(pilot: Pilot[int]) -> None:
    await shown(pilot, HelpScreen, "f1")


async def settings_shown(pilot: Pilot[int]) -> None:
    await shown(pilot, SettingsScreen, "f2")


async def setting_wrong(pilot: Pilot[int]) -> None:
    """A value that cannot be one is being written."""
    await settings_shown(pilot)
    await pilot.press("down", "down", "e", *"hot")


async def personas_shown(pilot: Pilot[int]) -> None:
    personas = chat_of(pilot).state.personas
    personas.save("Pirate", "You are a pirate.\n\nEvery answer begins with *arr*.")
    personas.save("Zen", "Sit.")
    await shown(pilot, PersonasScreen, "f4")


async def persona_made(pilot: Pilot[int]) -> None:
    """A new one is being written."""
    await personas_shown(pilot)
    await pilot.press("n", *"Brief")


async def branches_shown(pilot: Pilot[int]) -> None:
    await opened(pilot)
    for line in ("Name a fruit", "/regen", "And one that is [red]red[/]?", "/regen"):
        await say(pilot, line)
    await shown(pilot, BranchesScreen, "ctrl+t")


async def prompt_shown(pilot: Pilot[int]) -> None:
    await opened(pilot)
    await say(pilot, "Name a fruit")
    await say(pilot, "/prompt")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ViewerScreen))
    await pilot.pause()


async def call_asked(pilot: Pilot[int]) -> None:
    """A call of a tool is to be allowed."""
    await opened(pilot)
    arguments = '{"path": "/home/me/notes/[red]to do[/].md", "content": "first\\nsecond\\u001b[2J"}'
    pilot.app.push_screen(CallQuestion(AskedCall("notes", "write_file", arguments)))
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, CallQuestion))
    await pilot.pause()


async def machine_shown(pilot: Pilot[int]) -> None:
    await wait_until(pilot, lambda: any(panel.text for panel in pilot.app.screen.query(Panel)))
    await wait_until(pilot, lambda: all(panel.text for panel in pilot.app.screen.query(Panel) if panel.display))


async def too_small(pilot: Pilot[int]) -> None:
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, TooSmallScreen))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "steps",
    [
        *(help_shown, settings_shown, setting_wrong, personas_shown, persona_made, branches_shown, prompt_shown),
        call_asked,
    ],
)
def test_screen(snap_compare: Compare, make: Make, steps: Steps, size: tuple[int, int]) -> None:
    app = make(Script("apple", "pear", "plum", "cherry"), system="Be brief.")
    assert snap_compare(app, terminal_size=size, run_before=steps)


@pytest.mark.parametrize("size", SIZES)
def test_machine(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(Machine(), terminal_size=size, run_before=machine_shown)


def test_too_small(snap_compare: Compare, make: Make) -> None:
    assert snap_compare(make(Script()), terminal_size=(30, 8), run_before=too_small)
