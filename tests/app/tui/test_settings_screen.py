"""The settings screen: what is changed is kept in the file at once and counts; what is wrong writes nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.screens.settings import SettingsScreen
from edgeinfer.settings import Settings, declared_options, user_config_path
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script, ScriptedModel

Make = Callable[..., ChatApp]
SIZE = (100, 40)


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


def table(pilot: Pilot[int]) -> DataTable[str]:
    found: DataTable[str] = pilot.app.screen.query_one(DataTable)
    return found


def explained(pilot: Pilot[int]) -> str:
    """The line under the table."""
    return str(pilot.app.screen.query_one("#setting-help", Static).content)


def row(pilot: Pilot[int], name: str) -> list[str]:
    return table(pilot).get_row(name)


def in_file() -> dict[str, object]:
    path = user_config_path()
    return tomllib.loads(path.read_text()) if path.exists() else {}


async def opened(pilot: Pilot[int], at: str = "temp") -> None:
    """The settings, with the cursor at one of them."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    await wait_until(pilot, lambda: app.state.model is not None)
    await pilot.press("f2")
    await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
    await pilot.pause()
    table(pilot).move_cursor(row=table(pilot).get_row_index(at))
    await pilot.pause()


async def write(pilot: Pilot[int], text: str) -> None:
    """Change the setting at the cursor, up to Enter."""
    await pilot.press("enter")
    field = pilot.app.screen.query_one("#setting-value", Input)
    await wait_until(pilot, lambda: field.has_focus)
    field.value = text
    await pilot.pause()


async def test_every_declared_setting_stands_there(make: Make) -> None:
    async with make(Script()).run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert [str(key.value) for key in table(pilot).rows] == list(declared_options())
        assert row(pilot, "temp") == ["temp", "model's, else 0.7", ""]
        assert row(pilot, "seed") == ["seed", "random", ""]
        assert "temperature" in explained(pilot)


async def test_a_wrong_value_is_said_and_writes_nothing(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await write(pilot, "hot")
        assert "temp needs a number from 0 to 2, not 'hot'" in explained(pilot)
        await pilot.press("enter")
        assert app.screen.has_class("-editing")
        assert in_file() == {}
        await pilot.press("escape")
        assert not app.screen.has_class("-editing")
        assert row(pilot, "temp") == ["temp", "model's, else 0.7", ""]
        assert "temperature" in explained(pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        assert app.state.tuning.settings.generation.temp is None


async def test_a_right_value_is_in_the_file_and_counts(make: Make) -> None:
    script = Script("Hello")
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await write(pilot, "0.25")
        await pilot.press("enter")
        assert in_file() == {"temp": 0.25}
        assert row(pilot, "temp") == ["temp", "0.25", str(user_config_path())]
        assert table(pilot).has_focus
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        await pilot.press("H", "i", "enter")
        await wait_until(pilot, lambda: script.options)
        assert script.options[0]["temperature"] == 0.25


async def test_delete_takes_a_setting_out_of_the_file(make: Make, home: Path) -> None:
    user_config_path().write_text("# mine\ntemp = 0.25\n")
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert row(pilot, "temp")[1] == "0.25"
        await pilot.press("delete")
        assert row(pilot, "temp") == ["temp", "model's, else 0.7", ""]
        assert in_file() == {}
        assert "# mine" in user_config_path().read_text()
        assert app.state.tuning.settings.generation.temp is None


async def test_find_lists_what_has_the_words(make: Make) -> None:
    async with make(Script()).run_test(size=SIZE) as pilot:
        await opened(pilot)
        await pilot.press("slash", *"temp")
        await wait_until(pilot, lambda: "temp" in table(pilot).rows and "top_p" not in table(pilot).rows)
        await pilot.press("enter")
        assert table(pilot).has_focus
        await pilot.press("slash", *"zzz")
        await wait_until(pilot, lambda: not table(pilot).rows)
        await pilot.press("enter", "enter", "delete", "e")  # there is nothing to change, and nothing fails
        await pilot.press("slash", "escape")
        await wait_until(pilot, lambda: len(table(pilot).rows) == len(declared_options()))


async def test_what_the_environment_overrides_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_TEMP", "0.1")
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert row(pilot, "temp") == ["temp", "0.1", "EDGEINFER_TEMP"]
        assert "now from EDGEINFER_TEMP, before the file" in explained(pilot)
        await write(pilot, "0.9")
        await pilot.press("enter")
        assert in_file() == {"temp": 0.9}
        assert row(pilot, "temp") == ["temp", "0.1", "EDGEINFER_TEMP"]
        assert "now from EDGEINFER_TEMP" in explained(pilot)


async def test_what_the_command_line_overrides_says_so(make: Make) -> None:
    async with make(Script(), temp=0.1).run_test(size=SIZE) as pilot:
        await opened(pilot)
        assert row(pilot, "temp") == ["temp", "0.1", "command line"]
        assert "now from command line, before the file" in explained(pilot)


async def test_another_context_opens_the_model_again(make: Make) -> None:
    asked: list[int | None] = []

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        asked.append(settings.load.n_context)
        return LoadedModel(ScriptedModel(Script()))

    app = make(Script(), opening=opening)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "ctx")
        assert "opened again" in explained(pilot)
        await write(pilot, "2048")
        await pilot.press("enter")
        assert asked == [None]
        await pilot.press("escape")
        await wait_until(pilot, lambda: asked == [None, 2048])


async def test_leaving_without_a_change_opens_nothing_again(make: Make) -> None:
    asked: list[Settings] = []

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        asked.append(settings)
        return LoadedModel(ScriptedModel(Script()))

    app = make(Script(), opening=opening)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "ctx")
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        assert app.state.model is not None
        assert len(asked) == 1


async def test_another_theme_is_seen_at_once(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "theme")
        await write(pilot, "textual-light")
        await pilot.press("enter", "escape")
        await wait_until(pilot, lambda: app.theme == "textual-light")


async def test_a_file_that_is_no_toml_is_said_and_left_alone(make: Make) -> None:
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        user_config_path().write_text("temp = = 1\n")
        await write(pilot, "0.25")
        await pilot.press("enter")
        assert "not valid TOML" in explained(pilot)
        assert user_config_path().read_text() == "temp = = 1\n"
        assert app.screen.has_class("-editing")


async def test_it_can_be_used_in_the_smallest_terminal(make: Make) -> None:
    async with make(Script()).run_test(size=(40, 12)) as pilot:
        await opened(pilot)
        await write(pilot, "0.25")
        field = pilot.app.screen.query_one("#setting-value", Input)
        assert pilot.app.screen.region.contains_region(field.region)
        assert field.region.width > 20
        await pilot.press("enter")
        assert in_file() == {"temp": 0.25}
