"""One kept chat as a screen works with it: nothing is overwritten, and the store has it all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import text_of
from edgeinfer.app.sessions.records import Attachment, KeptMessage, MadeCall, ToolRound
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import BadSetting
from tests.app.tui.scripted import Script, ScriptedStream


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as opened:
        yield opened


def reopened(store: SessionStore, chat: Chat) -> Chat:
    assert chat.number is not None
    return Chat(store, store.session(chat.number))


def answered(chat: Chat, text: str, answer: str) -> tuple[KeptMessage, KeptMessage]:
    question, begun = chat.ask(text, (), "tiny")
    return question, chat.finish(begun.number, answer, "whole", None)


def texts(chat: Chat) -> list[str]:
    return [message.text for message in chat.branch]


def test_an_empty_chat_leaves_no_trace(store: SessionStore) -> None:
    chat = Chat(store, system="be brief")
    chat.system = "be kind"
    assert (chat.number, chat.title, chat.branch, chat.prompt()[0].content) == (None, "", (), "be kind")
    assert store.sessions() == ()
    for wrong in (chat.continue_answer, lambda: chat.answer_again(None), chat.fork, lambda: chat.rename("x")):
        with pytest.raises(BadSetting):
            wrong()


def test_calls_of_tools_are_kept_and_told_between_question_and_answer(store: SessionStore) -> None:
    chat = Chat(store)
    rounds = (ToolRound("See:", (MadeCall("a", "{}", "1"), MadeCall("b", '{"x": 2}', "2"))), ToolRound("no call"))
    question, answer = chat.ask("why?", (), None)
    chat.note_rounds(answer.number, rounds)
    assert reopened(store, chat).branch[1].rounds == rounds
    chat.finish(answer.number, "so", "whole", None)
    again = reopened(store, chat)
    call = {"id": "call_1", "type": "function", "function": {"name": "b", "arguments": '{"x": 2}'}}
    told = again.prompt()
    assert [(message.role, message.content) for message in told] == [
        ("user", "why?"), ("assistant", "See:"), ("tool", "1"), ("tool", "2"), ("assistant", "so")
    ]  # fmt: skip
    assert told[1].extra["tool_calls"][1] == call
    assert told[3].extra == {"tool_call_id": "call_1", "name": "b"}
    assert len(again.prompt(question.number)) == 1
    assert [
        len(message.extra["tool_calls"]) for message in again.fork().prompt() if message.extra.get("tool_calls")
    ] == [2]
    assert again.told()[1].content == '[called a {}: 1]\n\n[called b {"x": 2}: 2]\n\nso'
    again.finish(answer.number, "", "stopped", None)
    assert [message.role for message in again.prompt()] == ["user", "assistant", "tool", "tool"]
    assert again.continue_answer().rounds == rounds


def test_what_is_said_is_kept_at_once(store: SessionStore) -> None:
    chat = Chat(store, system="be brief")
    question, answer = chat.ask("why?", [Attachment("a", "b")], "tiny")
    assert answer.state == "writing"
    again = reopened(store, chat)
    assert [m.number for m in again.branch] == [question.number, answer.number]
    assert (again.system, again.title) == ("be brief", "why?")
    chat.finish(answer.number, "because", "whole", None)
    assert texts(reopened(store, chat)) == ["why?", "because"]
    assert [one.role for one in chat.prompt()] == ["system", "user", "assistant"]
    assert len(chat.prompt(question.number)) == 2


def test_other_questions_and_answers_are_siblings(store: SessionStore) -> None:
    chat = Chat(store)
    question, first = answered(chat, "q", "one")
    second = chat.answer_again("other")
    chat.finish(second.number, "two", "whole", None)
    assert texts(chat) == ["q", "two"]
    assert [(place.index, place.n_siblings) for place in chat.places] == [(1, 1), (2, 2)]
    assert chat.step(second.number, -1)
    assert texts(reopened(store, chat)) == ["q", "one"]
    assert not chat.step(first.number, -1)
    edited, begun = chat.ask_instead(question.number, "p", (), "tiny")
    chat.finish(begun.number, "three", "whole", None)
    assert texts(chat) == ["p", "three"]
    chat.show_through(question.number)
    assert texts(chat) == ["q", "two"]
    assert len(store.messages(chat.number or 0)) == 5
    assert chat.tree.siblings(edited.number)[0] == 1


def test_an_answer_is_continued(store: SessionStore) -> None:
    chat = Chat(store)
    _, begun = chat.ask("q", (), "tiny")
    chat.finish(begun.number, "half", "stopped", None)
    assert chat.continue_answer().state == "writing"
    assert reopened(store, chat).branch[-1].state == "writing"
    chat.finish(begun.number, "half and whole", "whole", None)
    assert texts(reopened(store, chat)) == ["q", "half and whole"]


def test_a_fork_stands_alone(store: SessionStore) -> None:
    chat = Chat(store, system="be brief")
    _, first = answered(chat, "q", "a")
    answered(chat, "r", "b")
    chat.rename("mine")
    fork = chat.fork(first.number)
    answered(fork, "s", "c")
    assert (texts(fork), fork.title, fork.system) == (["q", "a", "s", "c"], "mine (fork)", "be brief")
    assert texts(reopened(store, chat)) == ["q", "a", "r", "b"]
    assert fork.number != chat.number


def test_compaction_begins_a_branch(store: SessionStore) -> None:
    chat = Chat(store)
    answered(chat, "q", "a")
    answered(chat, "r", "b")
    chat.compacted("they said q and a", 2, "tiny")
    assert texts(chat) == ["they said q and a", "r", "b"]
    assert [one.role for one in chat.prompt()] == ["system", "user", "assistant"]
    roots = chat.tree.roots
    assert [root.text for root in roots] == ["q", "they said q and a"]
    assert texts(reopened(store, chat)) == texts(chat)


def test_a_chat_whose_end_is_not_known_shows_the_newest(store: SessionStore) -> None:
    chat = Chat(store)
    answered(chat, "q", "a")
    store.set_leaf(chat.number or 0, None)
    assert texts(reopened(store, chat)) == ["q", "a"]


def test_a_title_that_was_changed_elsewhere_is_taken_over(store: SessionStore) -> None:
    chat = Chat(store)
    answered(chat, "q", "a")
    store.rename(chat.number or 0, "other")
    chat.reread()
    assert chat.title == "other"


@pytest.mark.parametrize(("reason", "kept"), [("length", "caf"), ("stop", "caf\ufffd"), ("cancelled", "caf\ufffd")])
def test_a_limit_inside_a_character_leaves_nothing_of_it(reason: str, kept: str) -> None:
    stream = ScriptedStream(Script("caf"), 1, 0)
    list(stream)
    assert stream.stats is not None
    assert text_of("caf\ufffd", replace(stream.stats, finish_reason=reason)) == kept  # type: ignore[arg-type]
