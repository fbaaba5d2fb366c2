"""Folders in the app: larger than the context, and one that every question is about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.settings import Settings
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, quiet, say, wait_until
from tests.app.tui.scripted import FACTS, Script, ScriptedModel
from tests.app.tui.test_first_start import Make

SIZE = (100, 40)
FILLER = "Nothing of note stands here, and nothing follows from it at all.\n" * 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "docs"
    found.mkdir()
    for number in range(5):
        (found / f"note{number}.md").write_text(f"{FILLER}\n{FILLER}")
    (found / "lights.md").write_text(f"{FILLER}\nThe lighthouse keeper is called Maren Holt.\n\n{FILLER}")
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def make(home: Path, tmp_path: Path) -> Iterator[Make]:
    with chat_app(tmp_path / "app") as made:
        yield made


def attached(app: ChatApp) -> list[Attachment]:
    return [each for message in app.chat_screen.chat.branch for each in message.attachments]


def told(app: ChatApp) -> str:
    return "\n".join(note.message for note in app._notifications)


async def ready(app: ChatApp, pilot: Pilot[int]) -> None:
    await wait_until(pilot, lambda: app.state.model is not None)


@pytest.mark.parametrize("path", ["docs", "docs/"])
async def test_of_a_folder_larger_than_the_context_the_parts_that_suit_are_sent_and_it_is_said(
    make: Make, folder: Path, path: str
) -> None:
    app = make(Script("Maren Holt"))
    async with app.run_test(size=SIZE) as pilot:
        await ready(app, pilot)
        await say(pilot, f"@{path} Who is the keeper of the lighthouse?")
        await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 2)
        await quiet(app, pilot)
        assert "larger than the context" in told(app)
        assert any("Maren Holt" in each.text for each in attached(app))
        assert "note4.md" in attached(app)[0].text
        assert sum(len(each.text.split()) for each in attached(app)) < FACTS.n_context / 2
        assert branch(app)[-1] == ("assistant", "Maren Holt")


async def test_a_folder_that_fits_is_sent_whole(make: Make, folder: Path) -> None:
    for number in range(5):
        (folder / f"note{number}.md").write_text("Short.\n")
    (folder / "lights.md").write_text("The keeper is called Maren Holt.\n")
    app = make(Script("Maren Holt"))
    async with app.run_test(size=SIZE) as pilot:
        await ready(app, pilot)
        await say(pilot, "@docs Who is the keeper?")
        await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 2)
        await quiet(app, pilot)
        assert [each.name for each in attached(app)] == ["docs/lights.md", *(f"docs/note{n}.md" for n in range(5))]


async def test_what_is_too_long_beside_the_folder_is_still_refused(make: Make, folder: Path) -> None:
    (folder.parent / "huge.txt").write_text("word " * 5000)
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await ready(app, pilot)
        await say(pilot, "See @docs and @huge.txt")
        await wait_until(pilot, lambda: "not sent" in told(app))
        assert app.chat_screen.chat.branch == ()


async def test_every_question_gets_the_parts_that_suit_it_of_an_asked_folder(make: Make, folder: Path) -> None:
    (folder / "boats.md").write_text("The ferry leaves at nine.\n")
    app = make(Script("Maren Holt", "Nine", "Hello"))
    async with app.run_test(size=SIZE) as pilot:
        await ready(app, pilot)
        await say(pilot, "/folder docs")
        await wait_until(pilot, lambda: "each question gets the parts" in told(app))
        await say(pilot, "Who is the lighthouse keeper?")
        await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 2)
        await quiet(app, pilot)
        n_first = len(attached(app))
        assert any("Maren Holt" in each.text for each in attached(app))
        assert not any("ferry" in each.text for each in attached(app))
        await say(pilot, "When does the ferry leave?")
        await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 4)
        await quiet(app, pilot)
        later = attached(app)[n_first:]
        assert any("ferry leaves at nine" in each.text for each in later)
        assert not {each.name for each in later} & {each.name for each in attached(app)[:n_first]}
        await say(pilot, "/folder none")
        await say(pilot, "Hi")
        await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 6)
        assert app.chat_screen.chat.branch[-2].attachments == ()


async def test_a_folder_that_is_sent_early_waits_for_the_model(make: Make, folder: Path) -> None:
    ready_s, script = threading.Event(), Script("Maren Holt")

    def slow(settings: Settings, face: WatchedFace) -> LoadedModel:
        with face.loading() as progress:
            progress("loading the model", 0, 0)
            ready_s.wait(60)
        return LoadedModel(ScriptedModel(script))

    app = make(script, opening=slow)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "@docs Who is the keeper of the lighthouse?")
        await wait_until(pilot, lambda: "sent once the model is open" in told(app))
        assert app.chat_screen.chat.branch == ()
        ready_s.set()
        await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 2)
        await quiet(app, pilot)
        assert any("Maren Holt" in each.text for each in attached(app))
        assert sum(len(each.text.split()) for each in attached(app)) < FACTS.n_context / 2


@pytest.mark.parametrize(
    ("command", "said"),
    [("/folder", "no folder is asked about"), ("/folder nowhere", "nowhere is no folder")],
    ids=["none yet", "missing"],
)
async def test_folder_says_what_it_asks_about(make: Make, folder: Path, command: str, said: str) -> None:
    app = make(Script())
    async with app.run_test(size=SIZE) as pilot:
        await ready(app, pilot)
        await say(pilot, command)
        await wait_until(pilot, lambda: said in told(app))
