"""Kept chats: what was said is on disk, found again, and shared with other programs that have the file open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.app.sessions.database import STEPS, TURNS, open_database
from edgeinfer.app.sessions.records import MARK_BEGIN, MARK_END, Attachment, Figures
from edgeinfer.app.sessions.store import SessionStore, default_path, title_of
from edgeinfer.errors import SessionsFailed


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db", clock) as opened:
        yield opened


def test_the_file_is_where_the_home_is(home: Path) -> None:
    assert default_path() == home / "chats.db"


def test_everything_of_a_message_comes_back(store: SessionStore, tmp_path: Path, clock: Clock) -> None:
    chat = store.create("be brief", "a")
    assert (chat.title, chat.system, chat.leaf, chat.n_messages) == ("", "be brief", None, 0)
    clock.now_s = 1001.0
    files = (Attachment("a.py", "x = '\ud800'"), Attachment("b", ""))
    question = store.add(chat.number, None, "user", "\n  first line \nmore", attachments=files)
    answer = store.add(chat.number, question.number, "assistant", "", state="writing", model="b")
    figures = Figures(5, 2, 3, "stop", ttft_s=0.5, seed=None)
    store.finish(answer.number, "an \ud800swer", "whole", figures)
    with SessionStore(tmp_path / "chats.db", clock) as again:
        first, second = again.messages(chat.number)
        assert first == question
        assert first.attachments == files
        assert (second.text, second.state, second.figures, second.model) == ("an ?swer", "whole", figures, "b")
        session = again.session(chat.number)
        assert (session.title, session.leaf, session.changed_s, session.n_messages) == (
            "first line",
            answer.number,
            1001.0,
            2,
        )
        assert session.model == "b"


def test_chats_keep_their_order_where_the_clock_is_set(store: SessionStore, tmp_path: Path, clock: Clock) -> None:
    first, second, third = (store.create(None, None).number for _ in range(3))
    for number, now_s in ((first, 9000.0), (third, 20.0), (second, 4000.0), (first, 3000.0)):
        clock.now_s = now_s
        answer = store.add(number, None, "assistant", "", state="writing")
        store.finish(answer.number, "x", "whole", None)
    assert [session.number for session in store.sessions()] == [first, second, third]
    assert store.sessions()[0].changed_s == 3000.0  # what is shown is by the clock
    store.add_chat(store.session(second), store.messages(second))
    with SessionStore(tmp_path / "chats.db", clock) as again:
        assert [session.number for session in again.sessions()] == [third + 1, first, second, third]


def test_chats_of_earlier_versions_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = tmp_path / "chats.db", STEPS[: STEPS.index(TURNS)]
    monkeypatch.setattr("edgeinfer.app.sessions.database.STEPS", before)
    with closing(open_database(path)) as connection:
        for number, changed_s in ((1, 5.0), (2, 9.0), (3, 5.0), (4, 1.0)):
            connection.execute(
                "INSERT INTO sessions (number, created_s, changed_s) VALUES (?, 0, ?)", (number, changed_s)
            )
    monkeypatch.undo()
    with SessionStore(path, lambda: 0.0) as store:
        assert [session.number for session in store.sessions()] == [2, 3, 1, 4]
        store.add(4, None, "user", "x")
        assert [session.number for session in store.sessions()] == [4, 2, 3, 1]


def test_only_the_user_may_read_the_file(store: SessionStore, tmp_path: Path) -> None:
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / "chats.db").stat().st_mode) == 0o600


def test_a_title_comes_by_itself_until_there_is_another(store: SessionStore) -> None:
    chat = store.create(None, None).number
    store.add(chat, None, "user", "x" * 100)
    assert store.session(chat).title == "x" * 59 + "…"
    store.rename(chat, "  mine\nand \ud800 ")
    store.add(chat, None, "user", "other")
    assert store.session(chat).title == "mine and ?"
    store.rename(chat, " ")
    assert store.session(chat).title == "x" * 59 + "…"
    assert title_of(" \n\n ") == ""


def test_newest_first_without_deleted_ones(store: SessionStore, clock: Clock) -> None:
    chats = []
    for each in range(3):
        clock.now_s += 1
        chats.append(store.create(None, None).number)
        store.add(chats[-1], None, "user", f"question {each}")
    clock.now_s += 1
    store.add(chats[0], None, "user", "more")
    assert [session.number for session in store.sessions()] == [chats[0], chats[2], chats[1]]
    assert len(store.sessions(limit=2)) == 2
    store.delete(chats[2])
    assert [session.number for session in store.sessions()] == [chats[0], chats[1]]
    assert chats[2] not in {hit.session for hit in store.search("question")}
    assert store.session(chats[2]).deleted_s == clock.now_s
    store.undelete(chats[2])
    assert len(store.sessions()) == 3


def test_purging_takes_what_was_deleted_long_ago(store: SessionStore, clock: Clock) -> None:
    old, new, kept = (store.create(None, None).number for _ in range(3))
    for each in (old, new, kept):
        store.add(each, None, "user", "word")
    store.delete(old)
    clock.now_s += 100
    store.delete(new)
    assert store.purge(older_than_s=50) == 1
    with pytest.raises(SessionsFailed, match="removed for good"):
        store.session(old)
    assert store.messages(old) == ()
    with pytest.raises(SessionsFailed, match="removed for good meanwhile"):
        store.add(old, None, "user", "late")
    store.undelete(new)
    assert {hit.session for hit in store.search("word")} == {new, kept}
    assert store.add(new, None, "user", "it goes on").number > 0


def test_search_finds_words_and_marks_them(store: SessionStore) -> None:
    chat = store.create(None, None).number
    question = store.add(chat, None, "user", "How did the Café in Straße 7 begin?")
    answer = store.add(chat, question.number, "assistant", "", state="writing")
    store.write_text(answer.number, "With chairs and", "writing")
    assert store.search("chairs") == ()  # not while it is written: it would be read anew with each piece
    store.finish(answer.number, "With chairs and tables", "whole", None)
    (hit,) = store.search("tables chairs")
    assert (hit.message, hit.role, hit.title) == (answer.number, "assistant", "How did the Café in Straße 7 begin?")
    assert f"{MARK_BEGIN}chairs{MARK_END} and {MARK_BEGIN}tables{MARK_END}" in hit.snippet
    assert [hit.message for hit in store.search("cafe")] == [-1, question.number]
    assert [hit.message for hit in store.search("tab")] == [answer.number]
    assert store.search("tab ") == ()
    store.finish(answer.number, "nothing", "stopped", None)
    assert store.search("tables") == ()


def test_titles_count_most_then_questions(store: SessionStore) -> None:
    found = []
    for role, text, title in (
        ("assistant", "a zebra", "one"),
        ("user", "a zebra", "two"),
        ("user", "nothing", "zebra and others"),
    ):
        chat = store.create(None, None).number
        store.add(chat, None, role, text)
        store.rename(chat, title)
        found.append(chat)
    assert [hit.session for hit in store.search("zebra")] == found[::-1]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionStore]:
    """One store for all examples."""
    with SessionStore(tmp_path_factory.mktemp("shared") / "chats.db") as opened:
        opened.add(opened.create(None, None).number, None, "user", "a b c")
        yield opened


@settings(max_examples=200, deadline=None)
@given(
    st.text() | st.lists(st.sampled_from(['"', "*", "AND", "NEAR(", ")", "_", "a", "-", ":", " ", "^"])).map("".join)
)
def test_no_query_is_an_error(shared: SessionStore, query: str) -> None:
    shared.search(query)


def test_a_long_chat_is_read_at_once(store: SessionStore) -> None:
    chat = store.create(None, None).number
    parent = None
    for place in range(450):
        parent = store.add(chat, parent, "assistant" if place % 2 else "user", f"text {place} " * 50).number
    assert len(store.messages(chat)) == 450
    assert store.session(chat).n_messages == 450
