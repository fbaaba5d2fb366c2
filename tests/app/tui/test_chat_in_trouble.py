"""The chat on bad ground: engines that fail anywhere, full disks, other programs, hostile models, orders that cross."""

from __future__ import annotations

import resource
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.sessions import database
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.launch import open_model
from edgeinfer.app.tui.screens.branches import BranchesScreen
from edgeinfer.errors import DoesNotFit, ModelNotFound
from edgeinfer.settings import Settings
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, last, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel, ScriptedSession

SIZE = (100, 40)
Make = Callable[..., ChatApp]


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models, chats or settings."""


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


def told_by(app: ChatApp) -> list[str]:
    """What the app tells from now on."""
    told: list[str] = []
    app.chat_screen.tell = lambda text, is_error=False: told.append(text)  # type: ignore[method-assign]
    return told


async def grown(app: ChatApp, pilot: Pilot[int], text: str) -> None:
    """Until the last answer shows a text."""
    await wait_until(pilot, lambda: text in app.chat_screen.transcript.last_answer.source)


# Engines


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), OSError(5, "Input/output error"), MemoryError()])
async def test_an_engine_that_refuses_is_told_and_the_chat_goes_on(make: Make, error: Exception) -> None:
    app = make(Script(error, "whole"))
    async with app.run_test(size=SIZE) as pilot:
        told = told_by(app)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert (last(app).state, last(app).text) == ("failed", "")
        assert any(type(error).__name__ in text for text in told)
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert (last(app).state, last(app).text) == ("whole", "whole")


async def test_a_model_that_cannot_begin_is_closed_and_the_one_before_stays(make: Make) -> None:
    script = Script("Hello")
    models: list[ScriptedModel] = []

    class Broken(ScriptedModel):
        def session(self) -> ScriptedSession:
            raise ValueError("no room for keys and values")

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        models.append(Broken(script) if len(models) == 1 else ScriptedModel(script))
        return LoadedModel(models[-1])

    app = make(script, opening=opening)
    async with app.run_test(size=SIZE) as pilot:
        told = told_by(app)
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "/model broken")
        await wait_until(pilot, lambda: any("no room for keys and values" in text for text in told))
        await wait_until(pilot, lambda: app.state.model is models[0])
        assert [model.closed for model in models] == [False, True]
        assert app.state.opening_text == ""
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert last(app).text == "Hello"
        await say(pilot, "/model other")
        await wait_until(pilot, lambda: app.state.model is not None and app.state.model is models[-1])
        assert [model.closed for model in models] == [True, True, False]


@pytest.mark.parametrize("wrong", ["typo", "/etc/passwd"])
async def test_a_model_that_is_not_found_or_none_leaves_the_one_before(
    make: Make, home: Path, tiny_model: Path, wrong: str
) -> None:
    app = make(Script(), opening=open_model, model=str(tiny_model), device="reference", max_tokens=4)
    async with app.run_test(size=SIZE) as pilot:
        told = told_by(app)
        await wait_until(pilot, lambda: app.state.model is not None)
        model = app.state.model
        await say(pilot, f"/model {wrong}")
        await wait_until(pilot, lambda: any("is used as before" in text for text in told))
        assert any(wrong in text for text in told)
        await wait_until(pilot, lambda: app.state.model is model)
        assert app.state.tuning.settings.model.model == str(tiny_model)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert last(app).state in ("whole", "cut")


async def test_without_room_for_both_the_one_before_is_closed_and_opened_again_if_the_new_one_fails(make: Make) -> None:
    script = Script("Hello")
    models: list[ScriptedModel] = []
    seen: list[tuple[str | None, bool, bool]] = []

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        name = settings.model.model
        seen.append((name, face.is_beside, bool(models) and models[-1].closed))
        if name == "large":
            raise DoesNotFit("large has no room") if face.is_beside else ValueError("it is broken inside")
        models.append(ScriptedModel(script))
        return LoadedModel(models[-1])

    app = make(script, opening=opening, model="small")
    async with app.run_test(size=SIZE) as pilot:
        told = told_by(app)
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "/model large")
        await wait_until(pilot, lambda: any("it is broken inside" in text for text in told))
        await wait_until(pilot, lambda: app.state.model is models[-1])
        assert seen == [
            ("small", False, False),
            ("large", True, False),
            ("large", False, True),
            ("scripted.gguf", False, True),  # by its file: what is used last may be another one by now
        ]
        assert any("scripted is used as before" in text for text in told)
        assert app.state.tuning.settings.model.model == "small"
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert last(app).text == "Hello"


async def test_another_model_does_not_wait_for_the_one_that_is_being_opened(make: Make) -> None:
    script = Script("Hello")
    looks = threading.Event()

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        while settings.model.model == "slow":
            looks.set()
            threading.Event().wait(0.01)
            face.check()
        return LoadedModel(ScriptedModel(script, str(settings.model.model)))

    app = make(script, opening=opening, model="slow")
    async with app.run_test(size=SIZE) as pilot:
        await wait_until(pilot, looks.is_set)
        await say(pilot, "/model quick")
        await wait_until(pilot, lambda: app.state.model is not None)
        assert app.state.model.info.name == "quick"


async def test_a_model_whose_file_is_deleted_answers_on_and_its_absence_is_told(make: Make, tiny_model: Path) -> None:
    copy = tiny_model.parent / "deleted.gguf"
    copy.write_bytes(tiny_model.read_bytes())
    app = make(Script(), opening=open_model, model=str(copy), device="reference", max_tokens=4)
    async with app.run_test(size=SIZE) as pilot:
        told = told_by(app)
        await wait_until(pilot, lambda: app.state.model is not None)
        copy.unlink()
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert last(app).state in ("whole", "cut")
        assert last(app).figures is not None
        await say(pilot, f"/model {copy}")
        await wait_until(pilot, lambda: any("deleted.gguf" in text for text in told))
        await say(pilot, "/model gone")
        await wait_until(pilot, lambda: any("gone" in text for text in told))
        assert branch(app)[0] == ("user", "Hi")


# Kept chats


async def test_a_full_disk_is_told_and_the_answer_is_saved_when_there_is_room(make: Make) -> None:
    script = Script("one two three four")
    script.hold()
    app = make(script)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with app.run_test(size=SIZE) as pilot:
        told = told_by(app)
        await say(pilot, "Count")
        script.step(1)
        await grown(app, pilot, "one")
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            script.step(1)
            await wait_until(pilot, lambda: any("not saved yet" in text for text in told))
            script.go()
            await quiet(app, pilot)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert app.chat_screen.transcript.last_answer.source == "one two three four"
        assert app.state.autosave.flush()
        assert branch(app)[-1] == ("assistant", "one two three four")


@pytest.mark.parametrize("line", ["/regen", "/rename A title", "/fork", "/system Be brief.", "/continue", "/previous"])
async def test_what_cannot_be_written_just_now_is_told_and_changes_nothing(
    make: Make, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE_MS", 20)
    app = make(Script("one", "two"))
    async with app.run_test(size=SIZE) as pilot:
        for text in ("Hi", "/regen"):
            await say(pilot, text)
            await quiet(app, pilot)
        before, chat = branch(app), app.chat_screen.chat
        told = told_by(app)
        other = sqlite3.connect(app.state.store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await say(pilot, line)
        await wait_until(pilot, lambda: any("locked" in text for text in told))
        other.execute("ROLLBACK")
        other.close()
        assert branch(app) == before
        assert (app.chat_screen.chat, app.chat_screen.writing) == (chat, None)
        assert (chat.title, chat.system) == ("Hi", None)
        await say(pilot, line)
        await quiet(app, pilot)
        assert len([text for text in told if "locked" in text]) == 1


async def test_a_chat_that_another_program_removed_is_told(make: Make) -> None:
    app = make(Script("one"))
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        told = told_by(app)
        with SessionStore(app.state.store.path) as other:
            other.delete(app.chat_screen.chat.number)
            other.purge(-1.0)
        await say(pilot, "And?")
        await wait_until(pilot, lambda: any("removed for good" in text or "saved chat" in text for text in told))
        assert app.chat_screen.composer.draft.text == "And?"
        await say(pilot, "/new")
        await say(pilot, "And?")
        await quiet(app, pilot)
        assert branch(app) == [("user", "And?"), ("assistant", "Again.")]


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b'{"edgeinfer": 1', b"[]"])
async def test_a_broken_import_is_told_and_the_chat_stays(make: Make, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    app = make(Script("one"))
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        told = told_by(app)
        await say(pilot, f"/import {path}")
        await wait_until(pilot, lambda: any("broken.json" in text for text in told))
        assert branch(app) == [("user", "Hi"), ("assistant", "one")]


# Orders that cross


async def test_what_a_left_answer_still_says_is_not_the_next_ones(make: Make) -> None:
    script = Script("old1 old2 old3", "new1 new2")
    script.hold()
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "First")
        script.step(1)
        await grown(app, pilot, "old1")
        left = app.chat_screen.chat.number
        await say(pilot, "/new")
        await say(pilot, "Second")
        app.chat_screen.engine.text_buffer.add(app.chat_screen.writing.job - 1, "old2 ")  # said as it was stopped
        script.go()
        await quiet(app, pilot)
        assert app.chat_screen.transcript.last_answer.source == "new1 new2"
        assert branch(app) == [("user", "Second"), ("assistant", "new1 new2")]
        assert [(m.text, m.state) for m in app.state.store.messages(left)][-1] == ("old1 ", "stopped")


async def test_an_edited_question_is_not_sent_into_an_answer(make: Make) -> None:
    script = Script("one", "two three")
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await say(pilot, "/edit")
        await wait_until(pilot, lambda: app.chat_screen.edited is not None)
        script.hold()
        await app.chat_screen.action_regen()
        await say(pilot, "Hello")
        assert app.chat_screen.composer.draft.text == "Hello"
        script.go()
        await quiet(app, pilot)
        assert branch(app) == [("user", "Hi"), ("assistant", "two three")]
        await pilot.press("enter")
        await wait_until(pilot, lambda: branch(app)[0] == ("user", "Hello"))
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "Again.")


async def test_a_chat_deleted_while_its_answer_is_written_is_left(make: Make) -> None:
    script = Script("one two three")
    script.hold()
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Count")
        script.step(1)
        await grown(app, pilot, "one")
        number = app.chat_screen.chat.number
        await say(pilot, "/sessions")
        await wait_until(pilot, lambda: app.screen is not app.chat_screen)
        app.state.store.delete(number)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.chat_screen.chat.number is None)
        script.go()
        await wait_until(pilot, lambda: app.chat_screen.writing is None)
        assert [(m.text, m.state) for m in app.state.store.messages(number)][-1] == ("one ", "stopped")


async def test_a_branch_is_not_changed_under_an_answer(make: Make) -> None:
    script = Script("one", "two")
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        script.hold()
        await say(pilot, "/regen")
        for line in ("/previous", "/regen", "/continue", "/edit", "/compact"):
            await say(pilot, line)
        await say(pilot, "/tree")
        await wait_until(pilot, lambda: isinstance(app.screen, BranchesScreen))
        await pilot.press("up", "enter")
        await wait_until(pilot, lambda: app.screen is app.chat_screen)
        script.go()
        await quiet(app, pilot)
        assert branch(app) == [("user", "Hi"), ("assistant", "two")]


async def test_a_character_cut_in_two_is_written_anew(make: Make) -> None:
    script = Script(["caf\ufffd", "never"], ["é", " au lait"])
    script.hold()
    app = make(script)
    async with app.run_test(size=SIZE) as pilot:
        await say(pilot, "Hi")
        script.step(1)
        await grown(app, pilot, "caf")
        await pilot.press("escape")
        await quiet(app, pilot)
        script.go()
        await say(pilot, "/continue")
        await quiet(app, pilot)
        assert script.asked[-1][-1].content == "caf"
        assert branch(app)[-1] == ("assistant", "café au lait")


# Hostile models

HOSTILE = (
    "plain \x1b[31mred\x1b[0m \x1b]0;owned\x07 \x9b2J\r\n```sh\n\x1b[2Jclear\b\b\b\x7f\n```\n\n"
    "| a\x1b[H | b\x00 |\n|---|---|\n| \x1bP1;2q | \u202egnp.exe |\n\n- item \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n"
    "> quote \x85\u2028 end [link\x1b[5m](http://x\x07) ![image](\x1b[1m) <b>\x1b[0m</b> &#27;[31m"
)


async def test_no_control_code_of_a_model_reaches_the_terminal(make: Make) -> None:
    pieces = [HOSTILE[i : i + 3] for i in range(0, len(HOSTILE), 3)]
    app = make(Script(pieces, ModelNotFound(HOSTILE)))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await say(pilot, HOSTILE.replace("\n", " "))
        await quiet(app, pilot)
        await pilot.pause()
        shown = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
        assert "plain" in shown
        assert "clear" in shown
        assert [sign for sign in shown if unicodedata.category(sign) in ("Cc", "Cf", "Cs")] == []
