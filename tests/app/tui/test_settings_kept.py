"""The settings screen: made from the declarations, written into the user's file at once."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from edgeinfer.app.config_file import written
from edgeinfer.app.tui.app_state import Tuning
from edgeinfer.app.tui.screens.settings import SettingsChanged, SettingsScreen
from edgeinfer.settings import declared_options, find_option, user_config_path
from tests.app.tui.flows import wait_until

SIZES = pytest.mark.parametrize("size", [(40, 12), (100, 40)])


class Opened(App[None]):
    """An app that opens the settings, and keeps what they came to."""

    def __init__(self, **said: object) -> None:
        super().__init__()
        self.tuning = Tuning(said)
        self.results: list[SettingsChanged | None] = []

    def on_mount(self) -> None:
        """Open them."""
        self.push_screen(SettingsScreen(self.tuning.settings, self.tuning.reread), self.results.append)


def table(app: App[None]) -> DataTable[str]:
    """The table of settings."""
    return app.screen.query_one(DataTable)


def told(app: App[None]) -> str:
    """What the screen says of the setting."""
    return str(app.screen.query_one("#setting-help", Static).content)


def kept() -> dict[str, object]:
    """What is in the user's file."""
    return tomllib.loads(user_config_path().read_text())


async def point_at(pilot: Pilot[None], name: str) -> None:
    """Move the cursor to a setting."""
    await wait_until(pilot, lambda: pilot.app.screen.query(DataTable) and table(pilot.app).row_count)
    table(pilot.app).move_cursor(row=table(pilot.app).get_row_index(name))
    await pilot.pause()


@SIZES
async def test_every_setting_is_there(home: Path, size: tuple[int, int]) -> None:
    app = Opened()
    async with app.run_test(size=size) as pilot:
        await point_at(pilot, "kv")
        assert [key.value for key in table(app).rows] == list(declared_options())
        assert "KV cache type" in told(app)
        assert "opened again" in told(app)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.results)
        assert app.results == [None]
        assert not user_config_path().exists()


@SIZES
async def test_what_is_wrong_is_said_while_it_is_written(home: Path, size: tuple[int, int]) -> None:
    app = Opened()
    async with app.run_test(size=size) as pilot:
        await point_at(pilot, "top_p")
        await pilot.press("enter", "home", "3")
        field = app.screen.query_one("#setting-value", Input)
        await wait_until(pilot, lambda: "a number above 0, 1 at most" in told(app))
        await pilot.press("enter")
        assert field.has_focus
        field.value = "0.5"
        await pilot.press("enter")
        await wait_until(pilot, lambda: table(app).has_focus)
        assert kept() == {"top_p": 0.5}
        assert table(app).get_row("top_p")[1:] == ["0.5", str(user_config_path())]
        await pilot.press("delete")
        await wait_until(pilot, lambda: table(app).get_row("top_p")[1] == "model's, else 0.95")
        assert kept() == {}
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.results)
        assert app.results == [SettingsChanged(("top_p",), needs_reload=False)]


async def test_words_and_switches_are_stepped_through(home: Path) -> None:
    app = Opened()
    async with app.run_test() as pilot:
        await point_at(pilot, "kv")
        assert "the next word" in told(app)
        await pilot.press("enter")
        await wait_until(pilot, lambda: table(app).get_row("kv")[1] == "q8")
        await pilot.press("space", "space", "space")  # q8q4, q4, and the first again
        await wait_until(pilot, lambda: table(app).get_row("kv")[1] == "f16")
        await point_at(pilot, "pack")
        await pilot.press("space")
        await wait_until(pilot, lambda: table(app).get_row("pack")[1] == "false")
        assert kept() == {"kv": "f16", "pack": False}
        await point_at(pilot, "spec")  # a number is possible too
        await pilot.press("space")
        assert "spec" not in kept()
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.screen.query_one("#setting-value").has_focus)


async def test_clearing_a_field_unsets_what_may_be_unset(home: Path) -> None:
    app = Opened()
    async with app.run_test() as pilot:
        await point_at(pilot, "ctx")
        await pilot.press("enter", *"512", "enter")
        await wait_until(pilot, lambda: table(app).get_row("ctx")[1] == "512")
        await pilot.press("enter")
        app.screen.query_one("#setting-value", Input).value = ""
        await pilot.press("enter")
        await wait_until(pilot, lambda: table(app).get_row("ctx")[1] == "what the model was trained for, 8192 at most")
        assert kept() == {}
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.results)
        assert app.results == [SettingsChanged(("ctx",), needs_reload=True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("draft_from", ("a,b.txt", "c.txt")),
        ("draft_from", ("a.txt", "b.txt")),
        ("cores", (0, 2, 3)),
        ("device", "cpu,cuda"),
        ("keys", ("copy=f6", "new=f7")),
        ("verify_cost", {4: 1.05, 8: 1.15}),
        ("pack", False),
        ("seed", None),
    ],
)
def test_a_value_that_is_shown_can_be_kept_as_it_is(name: str, value: object) -> None:
    option = find_option(name)
    assert option.read(written(option, value)) == value


async def test_editing_without_a_change_keeps_every_value(home: Path) -> None:
    said = {"draft_from": "a.txt", "verify_cost": "4:1.05", "keys": "copy=f6 new=f7"}
    app = Opened(**said)
    before = {name: app.tuning.settings.value(name) for name in said}
    async with app.run_test() as pilot:
        for name in said:
            await point_at(pilot, name)
            await pilot.press("enter", "enter")
            await wait_until(pilot, lambda: table(app).has_focus)
    assert {name: Tuning().settings.value(name) for name in said} == before


async def test_a_broken_file_is_told_and_left(home: Path) -> None:
    app = Opened()
    async with app.run_test() as pilot:
        await point_at(pilot, "temp")
        home.mkdir(exist_ok=True)
        user_config_path().write_text("temp = [")
        await pilot.press("enter", "1", "enter")
        await wait_until(pilot, lambda: "mend it by hand" in told(app))
        assert user_config_path().read_text() == "temp = ["
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: app.results)
        assert app.results == [None]


async def test_what_goes_before_the_file_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_TEMP", "0.9")
    app = Opened(top_k=7)
    async with app.run_test(size=(100, 40)) as pilot:
        await point_at(pilot, "temp")
        assert table(app).get_row("temp")[2] == "EDGEINFER_TEMP"
        assert "before the file" in told(app)
        await pilot.press("enter")
        app.screen.query_one("#setting-value", Input).value = "0.1"
        await pilot.press("enter")
        await wait_until(pilot, lambda: table(app).has_focus)
        assert kept() == {"temp": 0.1}
        assert table(app).get_row("temp")[1] == "0.9"
        assert table(app).get_row("top_k")[1:] == ["7", "command line"]
