"""`/several` and `/map` as a person uses them: siblings, the choice and its reason, columns, parts in their order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Tree

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.written_beside import WrittenBeside
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.screens.branches import BranchesScreen
from edgeinfer.app.tui.widgets.answer_columns import AnswerColumns
from tests.app.tui.chat_apps import chat_app
from tests.app.tui.flows import branch, last, quiet, say, wait_until
from tests.app.tui.scripted import Script

Make = Callable[..., ChatApp]
WIDE, NARROW = (130, 40), (90, 40)
SUMS = ("I think it is 41.", "It is 42.", "So the answer is 42.", "It must be 40 or even 42.")
ASK = "/several 4 What is 40 + 2?"


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    with chat_app(home) as make:
        yield make


def columns(app: ChatApp) -> AnswerColumns:
    found = app.chat_screen.transcript.entries[-1]
    assert isinstance(found, AnswerColumns)
    return found


def notices(app: ChatApp) -> list[str]:
    return [notice.message for notice in app._notifications]


def texts(app: ChatApp) -> str:
    """What the transcript shows."""
    transcript = app.chat_screen.transcript
    return "\n".join(transcript.render_line(y).text for y in range(transcript.size.height))


async def shows(app: ChatApp, pilot: Pilot[int], words: str) -> None:
    """Wait until the transcript shows some words."""
    await wait_until(pilot, lambda: words in texts(app))


async def test_one_of_several_answers_is_kept_and_the_others_are_its_siblings(make: Make) -> None:
    script = Script(*SUMS)
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await quiet(app, pilot)
        assert branch(app) == [("user", "What is 40 + 2?"), ("assistant", SUMS[1])]
        assert [asked[-1].text for asked in script.asked] == ["What is 40 + 2?"] * 4
        place = app.chat_screen.chat.places[-1]
        assert (place.index, place.n_siblings) == (2, 4)
        beside = last(app).beside
        assert beside is not None
        assert (beside.count, beside.number, beside.kept, beside.is_kept) == (4, 2, 2, True)
        assert "42" in beside.reason
        await shows(app, pilot, f"answer 2 of 4 kept: {beside.reason}")
        await shows(app, pilot, "✓ 2 says 42 · kept")
        _, siblings = app.chat_screen.chat.tree.siblings(last(app).number)
        assert [each.text for each in siblings][1] == SUMS[1]
        assert all(each.beside is not None and each.beside.kept == 2 for each in siblings)


async def test_they_stand_side_by_side_on_a_wide_terminal(make: Make) -> None:
    script = Script(*SUMS)
    script.hold()
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        script.step(6)
        await wait_until(pilot, lambda: "think" in columns(app).columns[0].source)
        await wait_until(pilot, lambda: app.chat_screen.transcript.is_drawn)
        row = next(line for line in texts(app).splitlines() if "I think" in line)
        assert all(words in row for words in ("I think", "It is", "So", "It")), row
        await shows(app, pilot, "1 · writing · 2 tokens")
        script.go()
        await quiet(app, pilot)


async def test_on_a_narrow_terminal_one_is_shown_and_keys_show_the_others(make: Make) -> None:
    script = Script(*SUMS)
    script.hold()
    app = make(script)
    async with app.run_test(size=NARROW) as pilot:
        await say(pilot, ASK)
        script.step(8)
        await wait_until(pilot, lambda: "must" in columns(app).columns[3].source)
        await shows(app, pilot, "▸ 1 · writing · 2 tokens")
        await shows(app, pilot, "I think")
        assert "So the" not in texts(app)
        await pilot.press("alt+right")
        await pilot.press("alt+right")
        await shows(app, pilot, "So the")
        assert "I think" not in texts(app)
        assert app.chat_screen.writing is not None
        script.go()
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", SUMS[1])


async def test_without_a_question_the_last_one_is_asked_again(make: Make) -> None:
    app = make(Script("It is 7.", "It is 42.", "It is 42."))
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "What?")
        await quiet(app, pilot)
        await say(pilot, "/several 2")
        await quiet(app, pilot)
        place = app.chat_screen.chat.places[-1]
        assert (place.message.text, place.index, place.n_siblings) == ("It is 42.", 2, 3)
        assert len(app.chat_screen.chat.branch) == 2


async def test_another_pick(make: Make) -> None:
    app = make(Script("a much longer answer than that", "short"))
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/several 2 pick=shortest Well?")
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "short")
        _, siblings = app.chat_screen.chat.tree.siblings(last(app).number)
        first = siblings[0].beside
        assert first is not None
        assert first.early
        await shows(app, pilot, "not needed")


async def test_the_siblings_are_reached_with_the_usual_keys_and_the_chat_goes_on_from_any(make: Make) -> None:
    script = Script(*SUMS, "More.")
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await quiet(app, pilot)
        await pilot.press("alt+left")
        await wait_until(pilot, lambda: branch(app)[-1] == ("assistant", SUMS[0]))
        await shows(app, pilot, "answer 1 of 4; answer 2 was kept: ")
        await say(pilot, "And then?")
        await quiet(app, pilot)
        assert [message.text for message in script.asked[-1]] == ["What is 40 + 2?", SUMS[0], "And then?"]
        assert branch(app)[-1] == ("assistant", "More.")


async def test_the_next_question_follows_the_answer_that_is_kept(make: Make) -> None:
    script = Script(*SUMS, "More.")
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await quiet(app, pilot)
        await say(pilot, "And then?")
        await quiet(app, pilot)
        assert [message.text for message in script.asked[-1]] == ["What is 40 + 2?", SUMS[1], "And then?"]
        assert not any(isinstance(entry, AnswerColumns) for entry in app.chat_screen.transcript.entries)
        await shows(app, pilot, "‹ 2/4 ›")


async def test_the_answer_that_is_kept_is_continued_and_copied(make: Make) -> None:
    script = Script(*SUMS, "Exactly.")
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await quiet(app, pilot)
        assert app.chat_screen.transcript.last_answer.source == SUMS[1]
        await say(pilot, "/continue")
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", f"{SUMS[1]}Exactly.")
        await shows(app, pilot, "42.Exactly.")
        await shows(app, pilot, "answer 2 of 4 kept: ")


async def test_what_is_asked_meanwhile_waits(make: Make) -> None:
    script = Script(*SUMS, "More.")
    script.hold()
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await wait_until(pilot, lambda: len(script.asked) == 4)
        await say(pilot, "And then?")
        await wait_until(pilot, lambda: app.chat_screen.prompted)
        await say(pilot, "/several 2 Too soon?")
        await wait_until(pilot, lambda: any("an answer is being written" in notice for notice in notices(app)))
        script.go()
        await quiet(app, pilot)
        assert [text for _, text in branch(app)] == ["What is 40 + 2?", SUMS[1], "And then?", "More."]


async def test_the_tree_shows_which_is_kept_and_why(make: Make) -> None:
    app = make(Script(*SUMS))
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await quiet(app, pilot)
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: isinstance(app.screen, BranchesScreen))
        beside = last(app).beside
        assert beside is not None
        answers = [str(node.label) for node in app.screen.query_one(Tree).root.children[0].children]
        assert answers[0] == f"  1/4 {SUMS[0]}"
        assert answers[1] == f"● 2/4 ✓ {beside.reason} · {SUMS[1]}"


async def test_the_choice_is_there_when_the_chat_is_opened_again(make: Make) -> None:
    app = make(Script(*SUMS))
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, ASK)
        await quiet(app, pilot)
        number = app.chat_screen.chat.number
        assert number is not None
        await pilot.press("ctrl+n")
        await app.chat_screen.open_chat(number)
        await shows(app, pilot, "answer 2 of 4 kept: ")
        await shows(app, pilot, "‹ 2/4 ›")
        assert branch(app)[-1] == ("assistant", SUMS[1])


async def test_escape_stops_all_and_what_is_written_stays(make: Make) -> None:
    script = Script(*["one two three four five six"] * 3)
    script.hold()
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/several 3 Count")
        script.step(7)
        await wait_until(pilot, lambda: "three" in columns(app).columns[0].source)
        await pilot.press("escape")
        await quiet(app, pilot)
        _, siblings = app.chat_screen.chat.tree.siblings(last(app).number)
        assert [(each.text.split(), each.state) for each in siblings] == [
            (["one", "two", "three"], "stopped"),
            (["one", "two"], "stopped"),
            (["one", "two"], "stopped"),
        ]
        assert last(app) == siblings[0]
        assert last(app).beside == WrittenBeside(3, 1, 1, "no answer came to an end; the longest is kept")


async def test_what_is_written_stays_when_the_chat_is_left(make: Make) -> None:
    script = Script(*["one two three"] * 2)
    script.hold()
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/several 2 Count")
        script.step(2)
        await wait_until(pilot, lambda: "one" in columns(app).columns[1].source)
        chat = app.chat_screen.chat
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat_screen.chat is not chat)
        script.go()
        assert chat.number is not None
        kept = Chat(app.state.store, app.state.store.session(chat.number))
        _, siblings = kept.tree.siblings(kept.branch[-1].number)
        assert [(each.text, each.state) for each in siblings] == [("one ", "stopped")] * 2


async def test_an_error_in_one_ends_them_and_keeps_their_texts(make: Make) -> None:
    app = make(Script("one two three", ["four ", "<fail>"], "five six seven"))
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/several 3 Count")
        await quiet(app, pilot)
        _, siblings = app.chat_screen.chat.tree.siblings(last(app).number)
        assert [(each.text, each.state) for each in siblings] == [
            ("one two ", "failed"),
            ("four ", "failed"),
            ("five ", "failed"),
        ]
        assert any("the device broke down" in notice for notice in notices(app))
        await shows(app, pilot, "none was chosen")
        await say(pilot, "Go on")
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "Again.")


@pytest.mark.parametrize(
    ("line", "overrides", "reason"),
    [
        ("/several", {}, "how many answers"),
        ("/several 1 Hi", {}, "2 to 64"),
        ("/several 100 Hi", {}, "2 to 64"),
        ("/several four Hi", {}, "how many answers"),
        ("/several 3 pick=best Hi", {}, "there are: .*shortest"),
        ("/several 3 pick=check Hi", {}, "pick cannot be check"),
        ("/several 3", {}, "no question to answer again"),
        ("/several 3 Hi", {"temp": 0.0}, "with temperature 0 all answers are the same: /temp 0.7"),
        ("/map Translate", {}, "with which items"),
        ("/map", {}, "with which items"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_saved(
    make: Make, line: str, overrides: dict[str, object], reason: str
) -> None:
    app = make(Script("x"), **overrides)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, line)
        await wait_until(pilot, lambda: notices(app))
        assert any(re.search(reason, notice) for notice in notices(app)), notices(app)
        assert app.chat_screen.chat.branch == ()
        assert app.chat_screen.writing is None


async def test_a_model_that_refuses_says_why(make: Make) -> None:
    from edgeinfer.errors import UnsupportedModel

    app = make(Script(UnsupportedModel("this model makes embeddings, no text")))
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/several 3 Hi")
        await quiet(app, pilot)
        assert any("makes embeddings, no text" in notice for notice in notices(app))
        assert last(app).state == "failed"


async def test_parts_come_in_order_and_are_said_not_to_see_one_another(make: Make) -> None:
    script = Script("le chien", "le chat noir", "la vache")
    app = make(script, system="Be brief.")
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/map Translate to French:\nthe dog\n\nthe black cat\nthe cow")
        await quiet(app, pilot)
        assert branch(app) == [
            ("user", "Translate to French:\n\nthe dog\nthe black cat\nthe cow"),
            (
                "assistant",
                "**1. the dog**\n\nle chien\n\n**2. the black cat**\n\nle chat noir\n\n**3. the cow**\n\nla vache",
            ),
        ]
        assert [[message.text for message in asked] for asked in script.asked] == [
            ["Be brief.", f"Translate to French:\n\n{item}"] for item in ("the dog", "the black cat", "the cow")
        ]
        assert last(app).beside == WrittenBeside(3)
        await shows(app, pilot, "3 parts, which did not see one another")


async def test_parts_of_a_file(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.txt").write_text("one\n\ntwo\n")
    monkeypatch.chdir(tmp_path)
    script = Script("1", "2", "So.")
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/map As a number: @lines.txt")
        await quiet(app, pilot)
        assert branch(app) == [("user", "As a number:"), ("assistant", "**1. one**\n\n1\n\n**2. two**\n\n2")]
        assert [one.text for one in app.chat_screen.chat.branch[0].attachments] == ["one\n\ntwo\n"]
        await say(pilot, "And?")
        await quiet(app, pilot)
        assert "one\n\ntwo" in script.asked[-1][0].text


async def test_parts_that_are_stopped_keep_what_they_have(make: Make) -> None:
    script = Script("one two three", "four five six")
    script.hold()
    app = make(script)
    async with app.run_test(size=WIDE) as pilot:
        await say(pilot, "/map Count\nfrom one\nfrom four")
        script.step(3)
        await wait_until(pilot, lambda: "two" in app.chat_screen.transcript.last_answer.source)
        await shows(app, pilot, "0 of 2 parts are written")
        await pilot.press("ctrl+c")
        await quiet(app, pilot)
        assert branch(app)[-1] == ("assistant", "**1. from one**\n\none two\n\n**2. from four**\n\nfour")
        assert last(app).state == "stopped"
