"""An exception at any point of an answer, as signal handlers and a full stack raise them, costs that answer alone."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.unit.engine.scheduler.served import Served, request, stream_of

ENGINE = ("/engine/scheduler/", "/engine/run/", "/engine/kv/")


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


class Injected(BaseException):
    """As KeyboardInterrupt: nothing in the engine expects it."""


class BreaksOff:
    """A profiler that raises at the n-th place in the engine where Python calls signal handlers.

    These are where functions begin, and where functions of C have returned.
    """

    def __init__(self, n: int, kind: type[BaseException]) -> None:
        self.left, self.kind = n, kind

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and any(part in frame.f_code.co_filename for part in ENGINE):
            self.left -= 1
            if self.left == 0:
                raise self.kind


def elsewhere(served: Served) -> bool:
    """Whether another thread can have both locks of the engine."""
    got = list[bool]()

    def take() -> None:
        for lock in (served.pool.lock, served.driver._driving):
            if lock.acquire(blocking=False):
                got.append(True)
                lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return got == [True, True]


def broken_off(served: Served, tokenizer: Tokenizer, n: int, kind: type[BaseException]) -> bool:
    """Answer with an exception at the n-th place; returns whether there were so many."""
    wanted = request(range(3, 40), 6)
    stream = stream_of(served.pool.reserve(), tokenizer, wanted, driver=served.driver)
    breaks = BreaksOff(n, kind)
    sys.setprofile(breaks)
    try:
        list(stream)
    except kind:
        pass
    finally:
        sys.setprofile(None)
    assert not served.pool.lock.is_held
    assert elsewhere(served), n
    stream.close()
    stream._sequence.cached.close()
    return breaks.left <= 0


@pytest.mark.parametrize("kind", [Injected, RecursionError, MemoryError])
@pytest.mark.parametrize("every", [61])
def test_no_lock_and_no_page_is_lost(tokenizer: Tokenizer, every: int, kind: type[BaseException]) -> None:
    served, n = Served(tokenizer), 1
    wanted = request(range(60, 80), 5)
    expected = Served(tokenizer).alone(wanted).tokens
    while broken_off(served, tokenizer, n, kind):
        n += every
        if n % 5 == 0:
            other = stream_of(served.pool.reserve(), tokenizer, wanted, driver=served.driver)
            other.read()
            assert other.tokens == expected
            other._sequence.cached.close()
    assert n > 1000
    assert served.pool.members == ()
    assert served.pool.executor.n_free_pages == served.n_pages
