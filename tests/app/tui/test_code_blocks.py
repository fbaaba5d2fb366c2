"""Code blocks in answers: rules with numbers, and running them only after a yes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens import code_run
from edgeinfer.app.tui.screens.code_run import CodeRunScreen
from edgeinfer.app.tui.text.drawing import Drawer, Palette
from edgeinfer.app.tui.text.growing_lines import GrowingLines
from edgeinfer.app.tui.text.thinking import shown_fences
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import quiet, say, wait_until
from tests.app.tui.scripted import Script
from tests.app.tui.test_first_start import Make

ANSWER = "First:\n\n```python\nprint('one')\n```\n\n1. In a list:\n\n   ```sh\n   echo two\n   ```\n\n~~~\nthree\n~~~\n"


def drawn(text: str, width: int = 40, *, pieces: int = 1, finish: bool = True) -> list[str]:
    lines, drawer = GrowingLines(), Drawer(width, Palette())
    step = max(1, len(text) // pieces)
    for at in range(0, len(text), step):
        lines.push(text[at : at + step])
        lines.lines(drawer)
    if finish:
        lines.finish()
    return [strip.text for strip in lines.lines(drawer)]


@pytest.mark.parametrize("pieces", [1, 7, 1000], ids=["whole", "pieces", "characters"])
def test_every_code_block_has_its_number_and_language(pieces: int) -> None:
    shown = drawn(ANSWER, pieces=pieces)
    heads = [line.strip(" ─") for line in shown if line.strip().startswith("── ")]
    assert heads == ["1 python", "2 sh", "3"]
    rules = [line for line in shown if set(line.strip()) == {"─"}]
    assert len(rules) == 3
    assert all(len(line) == 40 for line in shown if line.startswith("──"))
    assert [fence.language for fence in shown_fences(ANSWER)] == ["python", "sh", ""]


def test_an_open_block_has_its_head_already_and_no_foot() -> None:
    shown = drawn("```python\nx = 1\ny =", finish=False)
    assert shown[0].startswith("── 1 python ─")
    assert not any(set(line) == {"─"} for line in shown)


@pytest.mark.parametrize("width", [1, 3, 5, 9, 12], ids=str)
def test_rules_are_never_wider_than_the_screen(width: int) -> None:
    assert all(len(line) <= width for line in drawn("```averyverylonglanguagename\nx\n```\n", width))


def test_blocks_of_thoughts_have_no_numbers() -> None:
    text = "<think>```sh\nrm -r x\n```</think>\n```python\npass\n```"
    assert [fence.language for fence in shown_fences(text)] == ["python"]


@pytest.fixture
def make(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code_run, "PAUSE_S", 0.0)
    with chat_app(tmp_path / "app") as made:
        yield made


def head(app: ChatApp) -> str:
    return str(app.screen.query_one("#code-head", Static).render())


async def asked(app: ChatApp, pilot: Pilot[int], command: str) -> None:
    await wait_until(pilot, lambda: app.state.model is not None)
    await say(pilot, "code, please")
    await quiet(app, pilot)
    await say(pilot, command)
    await wait_until(pilot, lambda: isinstance(app.screen, CodeRunScreen))


WRITES = f"```python\nopen('made.txt', 'w').write('x')\nprint('made it')\n```\n{'Text. ' * 3}\n```sh\nexit 7\n```"


@pytest.mark.parametrize("key", ["n", "escape"])
async def test_nothing_runs_without_a_yes(make: Make, tmp_path: Path, key: str) -> None:
    app = make(Script(WRITES))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot, "/run 1")
        assert f"{Path(sys.executable).name} -" in head(app)
        assert str(tmp_path) in head(app)
        assert "made.txt" in str(app.screen.query_one("#code-text", Static).render())
        await pilot.press("x", "enter", key)
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        await pilot.pause(0.2)
    assert not (tmp_path / "made.txt").exists()


async def test_what_was_being_typed_does_not_say_yes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make(Script(WRITES))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot, "/run 1")
        monkeypatch.setattr(code_run, "PAUSE_S", 3600.0)
        await pilot.press("m", "y")
        await pilot.pause(0.2)
        assert "Run " in head(app)
    assert not (tmp_path / "made.txt").exists()


async def test_after_a_yes_the_output_can_go_into_the_next_message(make: Make, tmp_path: Path) -> None:
    app = make(Script(WRITES))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot, "/run 1")
        await pilot.press("y")
        await wait_until(pilot, lambda: "ended with code 0" in head(app))
        assert (tmp_path / "made.txt").read_text() == "x"
        await pilot.press("a")
        await wait_until(pilot, lambda: app.chat_screen.composer.draft.attachments)
        (output,) = app.chat_screen.composer.draft.attachments
        assert (output.name, output.text) == ("output 1", "made it\n")


async def test_a_pipe_is_a_command_of_the_shell_and_its_code_is_shown(make: Make) -> None:
    app = make(Script(WRITES))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot, "/pipe 2 cat; exit 5")
        assert "Run  cat; exit 5  in" in head(app)
        await pilot.press("y")
        await wait_until(pilot, lambda: "ended with code 5" in head(app))
        assert "exit 7" in str(app.screen.query_one("#code-text", Static).render())


async def test_a_run_is_stopped_before_its_process_has_started(make: Make, tmp_path: Path) -> None:
    app = make(Script("```python\nimport time\ntime.sleep(600)\n```"))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot, "/run 1")
        await pilot.press("y", "escape")
        await wait_until(pilot, lambda: ": stopped" in head(app))


async def test_escape_stops_a_run_and_shows_what_came(make: Make) -> None:
    app = make(Script("```python\nimport time\nprint('be' + 'gun', flush=True)\ntime.sleep(600)\n```"))
    async with app.run_test(size=(100, 40)) as pilot:
        await asked(app, pilot, "/run")
        await pilot.press("y")
        await wait_until(pilot, lambda: "begun" in str(app.screen.query_one("#code-text", Static).render()))
        assert "Escape stops it" in head(app)
        await pilot.press("escape")
        await wait_until(pilot, lambda: "stopped" in head(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)


@pytest.mark.parametrize(
    ("command", "said"),
    [("/run 5", "2 code blocks; say 1 to 2"), ("/pipe", "into which command?")],
    ids=["number", "command"],
)
async def test_what_is_missing_is_said(make: Make, command: str, said: str) -> None:
    app = make(Script(WRITES))
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "code, please")
        await quiet(app, pilot)
        await say(pilot, command)
        await wait_until(pilot, lambda: any(said in note.message for note in app._notifications))
