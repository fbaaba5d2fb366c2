"""Saving answers while they grow: the newest text, in time, through failures, and without work when nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions.autosave import Autosave
from edgeinfer.app.sessions.records import KeptMessage, State
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import SessionsFailed
from tests.waiting import PATIENCE_S


class Watched(SessionStore):
    """A store that counts writes, and fails while it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written: list[str] = []
        self.tried = threading.Event()
        self.wrote = threading.Event()
        self.broken = ""

    def write_text(self, message: int, text: str, state: State) -> None:
        self.tried.set()
        if self.broken:
            raise SessionsFailed(self.broken)
        super().write_text(message, text, state)
        self.written.append(text)
        self.wrote.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path / "chats.db") as opened:
        yield opened


@pytest.fixture
def answer(store: Watched) -> KeptMessage:
    chat = store.create(None, None).number
    return store.add(chat, None, "assistant", "", state="writing")


def text_of(store: SessionStore) -> str:
    return store.messages(1)[0].text


def test_many_pieces_are_few_writes_and_the_newest_text_stays(store: Watched, answer: KeptMessage) -> None:
    with Autosave(store) as save:
        for n in range(1, 2001):
            save.note(answer.number, "x" * n)
        assert store.wrote.wait(PATIENCE_S)
    assert text_of(store) == "x" * 2000
    assert len(store.written) < 20


def test_nothing_is_written_while_nothing_changes(
    store: Watched, answer: KeptMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.app.sessions.autosave.BETWEEN_S", 0.01)
    with Autosave(store) as save:
        save.note(answer.number, "text")
        assert store.wrote.wait(PATIENCE_S)
        looks = count_wakes(save, monkeypatch)
        threading.Event().wait(0.3)
        assert looks() <= 2  # the end of the pause after the write, and the look whether there is more
    assert store.written == ["text"]


def count_wakes(save: Autosave, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the thread has waited since."""
    waits: list[None] = []
    wait_for = save._changed.wait_for

    def counted(predicate: Callable[[], object], timeout: float | None = None) -> object:
        waits.append(None)
        return wait_for(predicate, timeout)

    monkeypatch.setattr(save._changed, "wait_for", counted)
    return lambda: len(waits)


def test_what_cannot_be_written_is_told_once_and_written_later(
    store: Watched, answer: KeptMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.app.sessions.autosave.BETWEEN_S", 0.01)
    told: list[str] = []
    store.broken = "the disk is full"
    with Autosave(store, told.append) as save:
        save.note(answer.number, "one")
        for _ in range(3):
            store.tried.clear()
            assert store.tried.wait(PATIENCE_S)
        assert save.failure == "the disk is full"
        assert not save.flush()
        assert told == ["the disk is full"]
        save.note(answer.number, "one two")
        store.broken = ""
        assert store.wrote.wait(PATIENCE_S)
        assert save.flush()
        assert save.failure is None
        assert text_of(store) == "one two"
        store.broken = "again"
        save.note(answer.number, "one two three")
        assert not save.flush()
        assert told == ["the disk is full", "again"]
        store.broken = ""
    assert text_of(store) == "one two three"


def test_flush_writes_now_and_close_writes_the_rest(store: Watched, answer: KeptMessage) -> None:
    save = Autosave(store)
    save.note(answer.number, "one")
    assert save.flush()
    assert text_of(store) == "one"
    save.note(answer.number, "two")
    save.close()
    save.close()
    assert text_of(store) == "two"


def test_a_finished_answer_is_not_written_over(store: Watched, answer: KeptMessage) -> None:
    with Autosave(store) as save:
        save.note(answer.number, "begun")
        save.forget(answer.number)
        store.finish(answer.number, "whole", "whole", None)
        assert save.flush()
    (kept,) = store.messages(1)
    assert (kept.text, kept.state) == ("whole", "whole")


def test_the_callback_may_use_the_saver(store: Watched, answer: KeptMessage) -> None:
    """It is told without anything held, so that whoever waits for it can forget an answer meanwhile."""
    store.broken = "full"
    done = threading.Event()

    def told(reason: str) -> None:
        other = threading.Thread(target=lambda: (save.forget(answer.number), done.set()))
        other.start()
        assert done.wait(PATIENCE_S)

    save = Autosave(store, told)
    save.note(answer.number, "text")
    assert done.wait(PATIENCE_S)
    save.close()
