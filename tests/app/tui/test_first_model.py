"""The first choice of a model: what is listed, what each key does, and that nothing is fetched before a choice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from edgeinfer.app.catalogue.first_models import FirstModel, starter_row
from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.tui.app import ChatApp, has_few_colours
from edgeinfer.app.tui.engine import LoadedModel, Opening
from edgeinfer.app.tui.screens import first_model
from edgeinfer.app.tui.screens.first_model import FirstModelScreen, table_lines
from edgeinfer.app.tui.screens.models import ModelsScreen
from edgeinfer.errors import DownloadFailed
from edgeinfer.models.store import STARTER_NAME
from edgeinfer.settings import Settings
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import wait_until
from tests.app.tui.scripted import Script, ScriptedModel
from tests.app.tui.test_first_start import Make, page

SIZES = [pytest.param((100, 40), id="wide"), pytest.param((40, 12), id="small")]
OTHER = FirstModel("hf:someone/qwen:Q4_K_M", "qwen", "1.95 GB", "fits", "~10", "an all-rounder")
HERE = FirstModel("llama3.2", "llama3.2", "2.02 GB", "fits", "~6", "on this computer, from Ollama", is_here=True)


@pytest.fixture
def make(home: Path, tmp_path: Path) -> Iterator[Make]:
    with chat_app(tmp_path / "app") as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_model, "PAUSE_S", 0.0)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[FirstModel]:
    """What suits this computer, in place of a look at it."""
    found = [starter_row(), OTHER]
    monkeypatch.setattr(first_model, "first_models", lambda catalogue: tuple(found))
    return found


def choosing(chosen: list[str | None]) -> Opening:
    """Opens the model that is chosen first."""

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        chosen.append(face.first_model())
        return LoadedModel(ScriptedModel(Script()))

    return opening


async def listed(app: ChatApp, pilot: Pilot[int], count: int) -> OptionList:
    await wait_until(pilot, lambda: isinstance(app.screen, FirstModelScreen))
    found = app.screen.query_one(OptionList)
    await wait_until(pilot, lambda: found.option_count == count)
    await pilot.pause()
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("keys", "name"), [(("enter",), STARTER_NAME), (("down", "enter"), OTHER.name)], ids=["starter", "other"]
)
async def test_enter_opens_the_model_under_the_cursor(
    make: Make, rows: list[FirstModel], size: tuple[int, int], keys: tuple[str, ...], name: str
) -> None:
    chosen: list[str | None] = []
    app = make(Script(), opening=choosing(chosen))
    async with app.run_test(size=size) as pilot:
        await listed(app, pilot, 2)
        assert chosen == []
        await pilot.press(*keys)
        await wait_until(pilot, lambda: app.state.model is not None)
    assert chosen == [name]


async def test_a_model_that_is_here_stands_first_and_under_the_cursor(make: Make, rows: list[FirstModel]) -> None:
    rows.insert(0, HERE)
    chosen: list[str | None] = []
    app = make(Script(), opening=choosing(chosen))
    async with app.run_test(size=(100, 40)) as pilot:
        shown = await listed(app, pilot, 3)
        assert "from Ollama" in str(shown.get_option_at_index(0).prompt)
        await pilot.press("enter")
        await wait_until(pilot, lambda: chosen)
    assert chosen == ["llama3.2"]


async def test_what_was_being_typed_chooses_nothing(
    make: Make, rows: list[FirstModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_model, "PAUSE_S", 3600.0)
    chosen: list[str | None] = []
    app = make(Script(), opening=choosing(chosen))
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 2)
        await pilot.press("h", "i", "enter", "enter")
        await pilot.pause(0.1)
        assert isinstance(app.screen, FirstModelScreen)
        assert chosen == []


@pytest.mark.parametrize("last", ["enter", "escape", "ctrl+l"])
async def test_what_was_being_typed_is_kept_and_sent_once_a_model_is_open(
    make: Make, rows: list[FirstModel], last: str
) -> None:
    """A letter is no command, and the Enter that ends a line chooses no model."""
    chosen: list[str | None] = []
    app = make(Script("apple"), opening=choosing(chosen))
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 2)
        await pilot.press(*"lion", "x", "backspace", "s", "enter", "m")
        assert "Kept for the chat: lions ⏎ m" in str(app.screen.query_one("#first-keys", Static).content)
        assert isinstance(app.screen, FirstModelScreen)
        await pilot.press("backspace", last)
        if last == "enter":
            await wait_until(pilot, lambda: app.chat_screen.chat.branch and not app.chat_screen.prompted)
            assert app.chat_screen.chat.branch[0].text == "lions"
        else:
            await wait_until(pilot, lambda: app.chat_screen.composer.draft.text == "lions")
            assert not app.chat_screen.chat.branch


async def test_none_for_now_stays_on_the_first_page(make: Make, rows: list[FirstModel]) -> None:
    app = make(Script(), opening=choosing([]))
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 2)
        await pilot.press("escape")
        await wait_until(pilot, lambda: "No model is open: none was chosen" in page(app))
        assert "Ctrl+L" in page(app)


async def test_all_models_are_one_key_away(make: Make, rows: list[FirstModel]) -> None:
    app = make(Script(), opening=choosing([]))
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 2)
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))


async def test_without_a_network_the_page_says_so_until_another_model_is_opened(
    make: Make, rows: list[FirstModel]
) -> None:
    def unreachable(settings: Settings, face: WatchedFace) -> LoadedModel:
        face.first_model()
        raise DownloadFailed("the package index could not be reached; check the network")

    app = make(Script(), opening=unreachable)
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 2)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "could not be reached; check the network" in page(app))
        await pilot.pause(0.2)
        assert not app._notifications
        assert "No model is open" in page(app)


async def test_the_starter_is_there_while_the_computer_is_looked_at(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(catalogue: object) -> tuple[FirstModel, ...]:
        raise DownloadFailed("the folder of models cannot be read")

    monkeypatch.setattr(first_model, "first_models", broken)
    chosen: list[str | None] = []
    app = make(Script(), opening=choosing(chosen))
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 1)
        note = app.screen.query_one("#first-note", Static)
        await wait_until(pilot, lambda: "cannot be read" in str(note.render()))
        await pilot.press("enter")
        await wait_until(pilot, lambda: chosen)
    assert chosen == [STARTER_NAME]


@pytest.mark.parametrize("width", [40, 66, 80, 200])
def test_lines_are_as_wide_as_the_screen_at_most(width: int) -> None:
    long = FirstModel("x", "数" * 50, "1.95 GB", "fits", "~10", "good at " * 20)
    rows = [("model", "size", "fits", "tok/s", ""), (long.label, long.size, long.fit, long.tok_s, long.good_at)]
    from rich.cells import cell_len

    assert all(cell_len(line) <= width - 2 for line in table_lines(rows, width))


@pytest.mark.parametrize(
    ("environ", "few"),
    [
        ({"TERM": "xterm-16color"}, True),
        ({"TERM": "linux"}, True),
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, False),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "tmux-256color"}, False),
        ({"TERM": "xterm-kitty"}, False),
        ({}, False),
    ],
    ids=lambda value: " ".join(value.values()) or "none" if isinstance(value, dict) else str(value),
)
def test_terminals_with_few_colours(environ: dict[str, str], few: bool) -> None:
    assert has_few_colours(environ) is few


@pytest.mark.parametrize(
    ("overrides", "theme"),
    [({}, "ansi-dark"), ({"theme": "nord"}, "nord")],
    ids=["default", "chosen"],
)
async def test_with_few_colours_the_terminal_s_own_are_used_unless_a_theme_was_chosen(
    make: Make, rows: list[FirstModel], overrides: dict[str, object], theme: str
) -> None:
    app = make(Script(), opening=choosing([]), **overrides)
    app.state.has_few_colours = True
    async with app.run_test(size=(100, 40)) as pilot:
        await listed(app, pilot, 2)
        assert app.theme == theme
