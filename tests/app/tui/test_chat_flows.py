"""The chat screen as a person uses it, with a scripted model: every flow from the keyboard."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.events import Key

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.widgets.sending import WaitingLine
from edgeinfer.errors import ModelNotFound
from edgeinfer.settings import Settings
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, last, quiet, say, wait_until
from tests.app.tui.scripted import Script, ScriptedModel


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models, chats or settings."""


Make = Callable[..., ChatApp]


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    """Makes apps over the chats of this test, and cleans up after them."""
    with chat_app(home) as make:
        yield make


async def test_an_answer_streams_and_is_kept_with_its_numbers(make: Make) -> None:
    script = Script("Hello there, **friend**.")
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert branch(app) == [("user", "Hi"), ("assistant", "Hello there, **friend**.")]
        assert last(app).state == "whole"
        assert last(app).figures is not None
        assert last(app).figures.decode_tok_s == 50.0
        assert app.chat_screen.transcript.last_answer.source == "Hello there, **friend**."


async def test_escape_stops_within_a_step_and_the_part_stays(make: Make) -> None:
    script = Script("one two three four five six")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Count")
        script.step(3)
        await wait_until(pilot, lambda: "three" in app.chat_screen.transcript.last_answer.source)
        await pilot.press("escape")
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "one two three ")
        assert last(app).state == "stopped"


async def test_prompts_queue_while_an_answer_is_written(make: Make) -> None:
    script = Script("first answer", "second answer", "third answer")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "1")
        await wait_until(pilot, lambda: len(script.asked) == 1)
        await say(pilot, "2")
        await say(pilot, "3")
        assert [waiting.text for waiting in app.chat_screen.prompted] == ["2", "3"]
        script.go()
        await quiet(app, pilot)
        assert [text for _, text in branch(app)] == ["1", "first answer", "2", "second answer", "3", "third answer"]


async def test_what_waits_after_a_stop_says_what_sends_it_and_is_sent(make: Make) -> None:
    script = Script("one two three", "second answer", "third answer")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        line = app.chat_screen.query_one(WaitingLine)
        await say(pilot, "1")
        await wait_until(pilot, lambda: len(script.asked) == 1)
        await say(pilot, "2")
        await say(pilot, "3")
        await wait_until(pilot, lambda: str(line.render()) == "2 wait (Up takes back): 3")
        await pilot.press("escape")
        await wait_until(pilot, lambda: str(line.render()) == "2 wait (Enter sends, Up takes back): 3")
        assert len(script.asked) == 1
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(script.asked) == 2)
        assert str(line.render()) == "1 waits (Up takes back): 3"
        await pilot.press("enter")  # it waits for the answer
        script.go()
        await quiet(app, pilot)
        assert [text for role, text in branch(app) if role == "user"] == ["1", "2", "3"]
        assert not line.display


async def test_what_waits_when_the_chat_is_left_says_what_sends_it(make: Make) -> None:
    script = Script("one two three", "second answer")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        line = app.chat_screen.query_one(WaitingLine)
        await say(pilot, "1")
        await wait_until(pilot, lambda: len(script.asked) == 1)
        await say(pilot, "2")
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: str(line.render()) == "1 waits (Enter sends, Up takes back): 2")
        script.go()
        await pilot.press("enter")
        await quiet(app, pilot)
        assert [text for role, text in branch(app) if role == "user"] == ["2"]


async def test_regenerate_keeps_the_old_answer_as_a_branch(make: Make) -> None:
    app = make(Script("one", "two"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert branch(app) == [("user", "Hi"), ("assistant", "two")]
        assert [(place.index, place.n_siblings) for place in app.chat_screen.chat.places] == [(1, 1), (2, 2)]
        await say(pilot, "/previous")
        await wait_until(pilot, lambda: branch(app)[-1] == ("assistant", "one"))


async def test_an_edited_question_begins_a_branch(make: Make) -> None:
    script = Script("one", "two")
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hello")
        await quiet(app, pilot)
        await say(pilot, "/edit")
        assert app.chat_screen.composer.draft.text == "Hello"
        await say(pilot, "Goodbye")
        await quiet(app, pilot)
        assert branch(app) == [("user", "Goodbye"), ("assistant", "two")]
        assert app.chat_screen.chat.places[0].n_siblings == 2
        assert [message.content for message in script.asked[-1]] == ["Goodbye"]


async def test_continue_writes_on_in_the_same_message(make: Make) -> None:
    script = Script("one two three", "four five")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Count")
        script.step(2)
        await wait_until(pilot, lambda: "two" in app.chat_screen.transcript.last_answer.source)
        await pilot.press("escape")
        await quiet(app, pilot)
        script.go()
        await say(pilot, "/continue")
        await quiet(app, pilot)
        assert branch(app) == [("user", "Count"), ("assistant", "one two four five")]
        assert [message.content for message in script.asked[-1]] == ["Count", "one two "]
        assert app.chat_screen.transcript.last_answer.source == "one two four five"


async def test_the_numbers_of_a_chat_or_a_model_go_with_it(make: Make) -> None:
    app = make(Script("Hello", "Again"))
    async with app.run_test(size=(100, 40)) as pilot:
        meters = app.chat_screen.meters
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert "decode  50.0 tok/s" in meters.text
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: "decode     – tok/s" in meters.text and "    –/1,000" in meters.text)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await app.chat_screen.open_chat(1)
        assert "decode     – tok/s" in meters.text
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert "decode  50.0 tok/s" in meters.text
        await say(pilot, "/model other")
        await wait_until(pilot, lambda: "decode     – tok/s" in meters.text)


async def test_a_system_prompt_in_force_is_seen_in_every_chat_that_has_it(make: Make) -> None:
    script = Script("Hello")
    app = make(script)
    app.state.personas.save("Pirate", "Arr.")
    async with app.run_test(size=(100, 40)) as pilot:
        title, page = app.chat_screen.title_bar, app.chat_screen.first_page
        await wait_until(pilot, lambda: app.state.model is not None)
        assert "system" not in str(title.content)
        assert "system" not in str(page.content)
        await say(pilot, "/system Be brief, and  always polite.")
        await wait_until(pilot, lambda: "system prompt: /system · scripted" in str(title.content))
        assert "This chat has a system prompt: “Be brief, and always polite.”." in str(page.content)
        assert "/system TEXT changes it, /system none removes it." in str(page.content)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat_screen.chat.number is None)
        assert str(title.content).endswith("system prompt: /system · scripted")
        assert "“Be brief, and always polite.”" in str(page.content)
        await say(pilot, "/persona pirate")
        await wait_until(pilot, lambda: "persona Pirate: /persona · scripted" in str(title.content))
        assert "This chat has a persona Pirate: “Arr.”." in str(page.content)
        await say(pilot, "/system none")
        await wait_until(pilot, lambda: "/" not in str(title.content))
        assert "This chat has" not in str(page.content)


async def test_a_fork_is_a_chat_of_its_own(make: Make) -> None:
    app = make(Script("one", "two"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        before = app.chat_screen.chat.number
        await say(pilot, "/fork")
        await wait_until(pilot, lambda: app.chat_screen.chat.number != before)
        await say(pilot, "More")
        await quiet(app, pilot)
        assert [text for _, text in branch(app)] == ["Hi", "one", "More", "two"]
        assert len(app.state.store.messages(before)) == 2


async def test_an_engine_that_fails_keeps_the_text_and_the_chat_goes_on(make: Make) -> None:
    app = make(Script(["half ", "<fail>"], "whole"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert (last(app).state, last(app).text) == ("failed", "half ")
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert (last(app).state, last(app).text) == ("whole", "whole")


async def test_a_question_asked_while_the_model_loads_is_answered_then(make: Make) -> None:
    import threading

    ready = threading.Event()
    script = Script("Hello")

    def slow(settings: Settings, face: WatchedFace) -> LoadedModel:
        ready.wait(20)
        return LoadedModel(ScriptedModel(script))

    app = make(script, opening=slow)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        assert app.chat_screen.writing is not None
        ready.set()
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "Hello")


async def test_no_model_is_said_and_another_one_can_be_opened(make: Make) -> None:
    script = Script("Hello")
    names: list[str | None] = []

    def missing(settings: Settings, face: WatchedFace) -> LoadedModel:
        names.append(settings.model.model)
        if len(names) == 1:
            raise ModelNotFound("no model is called 'x'; there are: y")
        return LoadedModel(ScriptedModel(script, "y"))

    app = make(script, opening=missing)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: len(names) == 1)
        await say(pilot, "Hi")
        await quiet(app, pilot)
        assert last(app).state == "failed"
        await say(pilot, "/model y")
        await wait_until(pilot, lambda: app.state.model is not None)
        await say(pilot, "/regen")
        await quiet(app, pilot)
        assert names[-1] == "y"
        assert last(app).text == "Hello"


async def test_leaving_while_an_answer_is_written_keeps_it(make: Make) -> None:
    script = Script("one two three")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Count")
        script.step(2)
        await wait_until(pilot, lambda: "two" in app.chat_screen.transcript.last_answer.source)
        number = app.chat_screen.chat.number
        await pilot.press("ctrl+q")
    kept = app.state.store.messages(number)[-1]
    assert (kept.text, kept.state) == ("one two ", "stopped")


async def test_a_locked_database_is_told_and_the_text_is_saved_afterwards(make: Make) -> None:
    script = Script("one two three four")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        told: list[str] = []
        app.chat_screen.tell = lambda text, is_error=False: told.append(text)  # type: ignore[method-assign]
        await say(pilot, "Count")
        script.step(1)
        await wait_until(pilot, lambda: "one" in app.chat_screen.transcript.last_answer.source)
        other = sqlite3.connect(app.state.store.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        script.step(1)
        await wait_until(pilot, lambda: any("locked" in text for text in told))
        script.go()
        await wait_until(pilot, lambda: app.chat_screen.writing is None)
        other.execute("ROLLBACK")
        other.close()
        assert app.chat_screen.transcript.last_answer.source == "one two three four"
        assert app.state.autosave.flush()
        assert branch(app)[-1] == ("assistant", "one two three four")


async def test_a_question_that_cannot_be_saved_is_back_in_the_composer(make: Make) -> None:
    app = make(Script("Hello"))
    async with app.run_test(size=(100, 40)) as pilot:
        other = sqlite3.connect(app.state.store.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await say(pilot, "Hi")
        await wait_until(pilot, lambda: app.chat_screen.composer.draft.text == "Hi")
        other.execute("ROLLBACK")
        other.close()
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat_screen.writing is None and app.chat_screen.chat.branch)
        assert branch(app)[-1] == ("assistant", "Hello")


async def test_an_exported_chat_is_imported_again(make: Make, tmp_path: Path) -> None:
    app = make(Script("one"))
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hi")
        await quiet(app, pilot)
        await say(pilot, f"/export {tmp_path / 'chat.md'}")
        await wait_until(pilot, (tmp_path / "chat.md").exists)
        before = app.chat_screen.chat.number
        await say(pilot, f"/import {tmp_path / 'chat.md'}")
        await wait_until(pilot, lambda: app.chat_screen.chat.number != before)
        assert branch(app) == [("user", "Hi"), ("assistant", "one")]


async def test_keys_that_come_faster_than_they_are_taken_stay_in_order(make: Make) -> None:
    app = make(Script("Hello"))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        for letter in "quickly":
            app.post_message(Key(letter, letter))
        app.post_message(Key("enter", None))
        await wait_until(pilot, lambda: app.chat_screen.chat.branch)
        await quiet(app, pilot)
        assert branch(app)[0] == ("user", "quickly")


async def test_ctrl_d_leaves_where_nothing_is_written_and_ctrl_c_says_how(make: Make) -> None:
    app = make(Script("Hello"))
    async with app.run_test(size=(100, 40)) as pilot:
        told: list[str] = []
        app.chat_screen.tell = lambda text, is_error=False: told.append(text)  # type: ignore[method-assign]
        await pilot.press("ctrl+c")
        await wait_until(pilot, lambda: told)
        assert "Ctrl+Q leaves" in told[0]
        await pilot.press(*"ab", "home", "ctrl+d")
        await wait_until(pilot, lambda: app.chat_screen.composer.draft.text == "b")
        await pilot.press("ctrl+d", "ctrl+d")
        await wait_until(pilot, lambda: app.return_value is not None)
    assert app.return_value == 0


async def test_text_that_comes_under_another_screen_is_kept_and_drawn_afterwards(make: Make) -> None:
    script = Script("one two three")
    script.hold()
    app = make(script)
    async with app.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Count")
        script.step(1)
        await wait_until(pilot, lambda: "one" in app.chat_screen.transcript.last_answer.source)
        number = app.chat_screen.chat.number
        await pilot.press("f1")
        await wait_until(pilot, lambda: app.screen is not app.chat_screen)
        script.step(1)
        await wait_until(pilot, lambda: app.chat_screen.writing.text == "one two ")
        assert app.state.autosave.flush()
        assert app.state.store.messages(number)[-1].text == "one two "
        script.go()
        await quiet(app, pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.chat_screen.transcript.is_drawn)
        lines = [app.chat_screen.transcript.render_line(y).text for y in range(10)]
        assert any("one two three" in line for line in lines)
