"""How an answer was written beside others: saved, read back, exported; databases of earlier versions have none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.exporting import export_chat
from edgeinfer.app.sessions.importing import import_chat
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.sessions.written_beside import WrittenBeside, beside_of, beside_text
from tests.unit.app.sessions.earlier_versions import WITHOUT_TURNS

KEPT = WrittenBeside(4, 2, 2, "3 of 4 say --> 42")
OTHER = WrittenBeside(4, 3, 2, "3 of 4 say --> 42", early=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with SessionStore(tmp_path / "chats.db") as opened:
        yield opened


def asked(store: SessionStore) -> Chat:
    """Two answers to one question."""
    chat = Chat(store)
    question, first = chat.ask("What?", (), None)
    second = chat.answer_again(None, question.number)
    chat.finish(first.number, "42", "whole", None, KEPT)
    chat.finish(second.number, "41", "stopped", None, OTHER)
    chat.show(first.number)
    return chat


def reopened(store: SessionStore, number: int | None = None) -> Chat:
    return Chat(store, store.sessions()[0] if number is None else store.session(number))


@pytest.mark.parametrize(
    ("beside", "line"),
    [
        (KEPT, "answer 2 of 4 kept: 3 of 4 say --> 42"),
        (OTHER, "answer 3 of 4, not needed; answer 2 was kept: 3 of 4 say --> 42"),
        (WrittenBeside(4, 3), "answer 3 of 4; none was chosen"),
        (WrittenBeside(10), "10 parts, which did not see one another"),
    ],
)
def test_lines_for_people(beside: WrittenBeside, line: str) -> None:
    assert beside.line == line
    assert beside_of(beside_text(beside)) == beside


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "4",
        "null",
        '"a"',
        "{}",
        '{"count": "4"}',
        '{"count": -1}',
        '{"count": true}',
        '{"count": 4, "reason": 3}',
        '{"count": 4, "early": 1}',
        '{"count": 4, "number": 5}',
        '{"count": 4, "kept": 5}',
        '{"count": 1e99}',
    ],
)
def test_what_is_damaged_counts_as_empty(text: str | None) -> None:
    assert beside_of(text) is None


def test_fields_of_later_versions_are_ignored() -> None:
    assert beside_of('{"count": 2, "number": 1, "mood": "good"}') == WrittenBeside(2, 1)


def test_it_is_saved_and_stays_when_an_answer_is_continued_or_copied(store: SessionStore) -> None:
    chat = asked(store)
    kept = reopened(store)
    assert [each.beside for each in kept.tree.messages] == [None, KEPT, OTHER]
    again = kept.continue_answer()
    kept.finish(again.number, "42 and more", "whole", None)
    assert reopened(store).branch[-1].beside == KEPT
    assert chat.fork().branch[-1].beside == KEPT


@pytest.mark.parametrize(("suffix", "found"), [(".json", [None, KEPT, OTHER]), (".md", [None, KEPT])])
def test_it_is_exported_and_imported(
    store: SessionStore, tmp_path: Path, suffix: str, found: list[WrittenBeside | None]
) -> None:
    chat = asked(store)
    assert chat.number is not None
    number = import_chat(store, export_chat(store, chat.number, tmp_path / f"c{suffix}"))
    assert [message.beside for message in store.messages(number)] == found


def test_an_older_database_is_migrated(store: SessionStore) -> None:
    asked(store)
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.executescript(f"{WITHOUT_TURNS} ALTER TABLE messages DROP COLUMN beside; PRAGMA user_version = 4")
    with SessionStore(store.path) as opened:
        chat = reopened(opened)
        assert [(each.text, each.beside) for each in chat.tree.messages] == [
            ("What?", None),
            ("42", None),
            ("41", None),
        ]
        answer = chat.answer_again(None)
        chat.finish(answer.number, "40", "whole", None, WrittenBeside(3, 3))
        assert reopened(opened).branch[-1].beside == WrittenBeside(3, 3)
