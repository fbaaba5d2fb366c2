"""The personas screen: choosing, writing, renaming, deleting with undo; no persona is lost to another one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static, TextArea

from edgeinfer.app.chat.personas import NamedText, Personas
from edgeinfer.app.tui.screens.personas import PersonasScreen
from tests.app.tui.flows import wait_until

SIZES = pytest.mark.parametrize("size", [(40, 12), (100, 40)])


class Opened(App[None]):
    """An app that opens the personas of a folder."""

    def __init__(self, personas: Personas) -> None:
        super().__init__()
        self.personas = personas
        self.results: list[NamedText | None] = []

    def on_mount(self) -> None:
        """Open them."""
        self.push_screen(PersonasScreen(self.personas, "You are kind."), self.results.append)


@pytest.fixture
def personas(tmp_path: Path) -> Personas:
    """Two personas, one of them hostile."""
    found = Personas(tmp_path / "personas")
    found.save("lawyer", "Be [red]exact[/red].\x1b[2J")
    found.save("Poet", "Answer in verse.")
    return found


def told(app: App[None]) -> str:
    """What the screen says."""
    return str(app.screen.query_one("#persona-hint", Static).content)


async def listed(pilot: Pilot[None], *names: str) -> None:
    """Wait until these are listed."""
    await wait_until(
        pilot,
        lambda: (
            pilot.app.screen.query(OptionList)
            and [str(line.prompt) for line in pilot.app.screen.query_one(OptionList).options] == list(names)
        ),
    )


@SIZES
async def test_choosing_one(personas: Personas, size: tuple[int, int]) -> None:
    app = Opened(personas)
    async with app.run_test(size=size) as pilot:
        await listed(pilot, "lawyer", "Poet")
        await wait_until(pilot, lambda: app.screen.query_one(TextArea).text == "Be [red]exact[/red].[2J")
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: app.results)
        assert app.results == [NamedText("Poet", "Answer in verse.")]


@SIZES
async def test_a_new_one_begins_with_what_is_in_use(personas: Personas, size: tuple[int, int]) -> None:
    app = Opened(personas)
    async with app.run_test(size=size) as pilot:
        await listed(pilot, "lawyer", "Poet")
        await pilot.press("n", *"kind", "ctrl+s")
        await listed(pilot, "kind", "lawyer", "Poet")
        assert personas.find("kind").text == "You are kind."


async def test_a_new_one_takes_no_others_name(personas: Personas) -> None:
    app = Opened(personas)
    async with app.run_test() as pilot:
        await listed(pilot, "lawyer", "Poet")
        await pilot.press("n", *"poet", "ctrl+s")
        await wait_until(pilot, lambda: "already" in told(app))
        assert personas.find("Poet").text == "Answer in verse."
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen.query_one(OptionList).has_focus)


@pytest.mark.parametrize("name", ["Bard", "poet"])
async def test_renaming_leaves_one_file(personas: Personas, name: str) -> None:
    app = Opened(personas)
    async with app.run_test() as pilot:
        await listed(pilot, "lawyer", "Poet")
        await pilot.press("down", "e")
        app.screen.query_one("#persona-name", Input).value = name
        await pilot.press("ctrl+s")
        await listed(pilot, *sorted(["lawyer", name], key=str.casefold))
        assert sorted(os.listdir(personas.folder)) == sorted([f"{name}.md", "lawyer.md"])
        assert personas.find(name).text == "Answer in verse."


async def test_deleting_and_bringing_back(personas: Personas) -> None:
    app = Opened(personas)
    async with app.run_test() as pilot:
        await listed(pilot, "lawyer", "Poet")
        await pilot.press("down", "delete")
        await listed(pilot, "lawyer")
        assert "u brings it back" in told(app)
        await pilot.press("u")
        await listed(pilot, "lawyer", "Poet")
        assert personas.find("Poet").text == "Answer in verse."


async def test_what_was_deleted_does_not_replace_a_new_one(personas: Personas) -> None:
    app = Opened(personas)
    async with app.run_test() as pilot:
        await listed(pilot, "lawyer", "Poet")
        await pilot.press("down", "delete")
        await listed(pilot, "lawyer")
        await pilot.press("n", *"poet", "ctrl+s")
        await listed(pilot, "lawyer", "poet")
        await pilot.press("u")
        await wait_until(pilot, lambda: "rename it first" in told(app))
        assert personas.find("poet").text == "You are kind."


async def test_a_full_disk_is_told_when_bringing_back(personas: Personas, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Opened(personas)
    async with app.run_test() as pilot:
        await listed(pilot, "lawyer", "Poet")
        await pilot.press("delete")
        await listed(pilot, "Poet")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        await pilot.press("u")
        await wait_until(pilot, lambda: "No space left" in told(app))
        monkeypatch.undo()
        await pilot.press("u")
        await listed(pilot, "lawyer", "Poet")
