"""Threads that read together: all of them return before the caller does, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from edgeinfer.errors import DeviceFailed
from edgeinfer.offload.neurons.readers import Readers
from edgeinfer.offload.waiting import Bell


@dataclass(slots=True)
class Work:
    """Pieces that threads take, one millisecond each. `fails_at`: a piece that cannot be done."""

    pieces: list[int]
    fails_at: int | None = None
    done: list[int] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    n_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, number: int) -> None:
        with self.lock:
            self.numbers.add(number)
            self.n_busy += 1
        try:
            while self.pieces:
                try:
                    piece = self.pieces.pop()
                except IndexError:
                    return
                time.sleep(0.001)
                if piece == self.fails_at:
                    raise DeviceFailed(f"piece {piece} cannot be read")
                self.done.append(piece)
        finally:
            with self.lock:
                self.n_busy -= 1

    def stop(self) -> None:
        self.pieces.clear()


@pytest.fixture
def readers() -> Iterator[Readers]:
    found = Readers(4)
    yield found
    found.close()
    found.close()


@pytest.mark.parametrize("most", [1, 3, 100])
def test_all_pieces_are_done_once_by_so_many_at_most(readers: Readers, most: int) -> None:
    for _ in range(20):
        work = Work(list(range(30)))
        readers.run(work, most, work.stop)
        assert sorted(work.done) == list(range(30))
        assert work.n_busy == 0
        assert work.numbers <= set(range(min(4, most)))
        assert 0 in work.numbers


def test_an_error_anywhere_is_raised_once_all_are_back(readers: Readers) -> None:
    for piece in range(20):
        work = Work(list(range(20)), fails_at=piece)
        with pytest.raises(DeviceFailed, match=f"piece {piece} cannot"):
            readers.run(work, 4, work.stop)
        assert work.n_busy == 0
    work = Work(list(range(20)))
    readers.run(work, 4, work.stop)
    assert len(work.done) == 20


def test_who_is_interrupted_while_waiting_has_the_others_stop_first(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, waits, wait = Work(list(range(4000))), 0, Bell.wait
    caller = threading.current_thread()

    def interrupted(bell: Bell) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            raise KeyboardInterrupt
        wait(bell)

    def task(number: int) -> None:
        if threading.current_thread() is caller:
            while not work.n_busy:  # the caller is done at once, others are not
                time.sleep(0.0001)
            return
        work(number)

    monkeypatch.setattr(Bell, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        readers.run(task, 4, work.stop)
    assert waits >= 1
    assert work.n_busy == 0
    assert len(work.done) < 4000


def test_one_thread_rings_at_a_time(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that find a bell silent would both make it ring, which ends the thread of the second."""
    ring, n_ringing, most = Bell.ring, 0, 0

    def slow(bell: Bell) -> None:
        nonlocal n_ringing, most
        n_ringing += 1
        most = max(most, n_ringing)
        time.sleep(0.002)
        n_ringing -= 1
        ring(bell)

    monkeypatch.setattr(Bell, "ring", slow)
    for _ in range(20):
        work = Work(list(range(12)))
        readers.run(work, 4, work.stop)
    assert most == 1
