"""What the command line asks the app to begin with: the last kept chat, a question."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key

from edgeinfer.app.chat.beginning import NO_EARLIER, Beginning
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.chat import ChatScreen
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, quiet, wait_until
from tests.app.tui.scripted import Script


@pytest.fixture
def make(home: Path, tmp_path: Path) -> Iterator[Callable[..., ChatApp]]:
    with chat_app(tmp_path / "kept") as made:
        yield made


def keep(app: ChatApp, question: str, answer: str) -> int:
    """A kept chat; its number."""
    store = app.state.store
    number = store.create("Be kind.", "scripted").number
    store.add(number, store.add(number, None, "user", question).number, "assistant", answer)
    return number


async def test_keys_pressed_before_the_screen_is_there_are_not_lost(
    make: Callable[..., ChatApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = ChatApp.on_mount

    def mount_late(app: ChatApp) -> None:
        for key in "hello":
            app.post_message(Key(key, key))
        mount(app)

    monkeypatch.setattr(ChatApp, "on_mount", mount_late)
    app = make(Script())
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.chat_screen.composer.draft.text == "hello")


async def test_a_model_is_opened_after_the_first_draw(
    make: Callable[..., ChatApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    display, begin = ChatApp._display, ChatScreen.begin

    def note_display(app: ChatApp, *given: Any) -> None:
        if not app._batch_count:
            done.append("drawn")
        display(app, *given)

    def note_begin(screen: ChatScreen) -> None:
        done.append("begun")
        begin(screen)

    monkeypatch.setattr(ChatApp, "_display", note_display)
    monkeypatch.setattr(ChatScreen, "begin", note_begin)
    gc.disable()
    async with make(Script()).run_test() as pilot:
        await wait_until(pilot, lambda: "begun" in done)
        assert done[0] == "drawn"
        assert gc.isenabled()


async def test_a_question_is_asked_at_once(make: Callable[..., ChatApp]) -> None:
    app = make(script := Script("By tradition in 753 BC."))
    app.state.beginning = Beginning(question="/when was Rome founded?")
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.chat_screen.chat.branch)
        await quiet(app, pilot)
        assert branch(app) == [("user", "/when was Rome founded?"), ("assistant", "By tradition in 753 BC.")]
        assert app.chat_screen.composer.draft.text == ""
        assert len(script.asked) == 1


async def test_files_that_the_question_names_are_attached(
    make: Callable[..., ChatApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("Rome\n")
    app = make(Script("A town."))
    app.state.beginning = Beginning(question="what is in @notes.txt")
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.chat_screen.chat.branch)
        await quiet(app, pilot)
        assert [one.name for one in app.chat_screen.chat.branch[0].attachments] == ["notes.txt"]


@pytest.mark.parametrize("question", ["", "And Carthage?"])
async def test_the_last_chat_goes_on(make: Callable[..., ChatApp], question: str) -> None:
    app = make(script := Script("Earlier."))
    keep(app, "Which tea?", "Green.")
    keep(app, "When was Rome founded?", "In 753 BC.")
    app.state.beginning = Beginning(continues=True, question=question)
    before = [("user", "When was Rome founded?"), ("assistant", "In 753 BC.")]
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.chat_screen.chat.number)
        if question:
            await wait_until(pilot, lambda: len(app.chat_screen.chat.branch) == 4)
            await quiet(app, pilot)
            assert script.asked[0][0].content == "Be kind."
        assert branch(app) == [*before, *([("user", question), ("assistant", "Earlier.")] if question else [])]
        assert len(app.chat_screen.transcript.entries) == len(branch(app))


async def test_without_an_earlier_chat_a_new_one_begins(make: Callable[..., ChatApp]) -> None:
    app = make(Script("Hello."))
    app.state.beginning = Beginning(continues=True, question="Hi")
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app._notifications)
        assert [notice.message for notice in app._notifications] == [NO_EARLIER]
        await wait_until(pilot, lambda: app.chat_screen.chat.branch)
        await quiet(app, pilot)
        assert branch(app) == [("user", "Hi"), ("assistant", "Hello.")]


async def test_a_system_prompt_of_the_command_line_counts_for_the_last_chat(make: Callable[..., ChatApp]) -> None:
    app = make(Script())
    number = keep(app, "Which tea?", "Green.")
    app.state.beginning = Beginning(continues=True, system="Be brief.")
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.chat_screen.chat.number)
        assert app.chat_screen.chat.system == "Be brief."
        assert app.state.store.session(number).system == "Be brief."
