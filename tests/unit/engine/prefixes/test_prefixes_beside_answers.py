"""Prefixes on disk while other answers go on: what is read ahead, and what is written of texts that lose their memory.

Either way answers are those of reading all of it anew, bit for bit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.kv.cached_pages import Bytes
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.prefixes import keeping, kept, restoring, store
from edgeinfer.engine.prefixes.keeping import CopiedText, PrefixWriter
from edgeinfer.engine.prefixes.parts_file import DamagedFile, PartsFile, PartsReader
from edgeinfer.engine.prefixes.store import PrefixStore
from edgeinfer.engine.scheduler.stream import TextStream
from tests.golden.goldens import DATA
from tests.unit.engine.prefixes.test_disk_prefixes import (
    GREEDY,
    SEEDED,
    TEXT,
    Asked,
    anew,
    ask,
    bits,
    files,
    no_threads_left,
    opened,
    small_windows,
)
from tests.waiting import until

__all__ = ["no_threads_left", "small_windows"]


class Gate:
    """Lets files be read once it is open. `harm`: a page turns out to be damaged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, harm: bool = False) -> None:
        self.open = threading.Event()
        self.n_asked = 0
        read = PartsFile.read

        def gated(file: PartsFile, number: int, memory: memoryview) -> memoryview:
            self.n_asked += 1
            assert self.open.wait(120)
            if harm and number == 2:
                raise DamagedFile(file.path)
            return read(file, number, memory)

        monkeypatch.setattr(PartsFile, "read", gated)


@contextmanager
def another_answer(llm: LLM) -> Iterator[TextStream]:
    """An answer under way by the engine's own thread, as fast as it can."""
    stream = llm.complete("another text", max_tokens=900, ignore_eos=True, **SEEDED)
    llm._driver.drive(stream._sequence, lambda: None)
    until(lambda: stream._sequence.tokens)
    try:
        yield stream
    finally:
        stream.close()


def keep(path: Path, *texts: str) -> None:
    with opened(path) as llm:
        for text in texts:
            ask(llm, text, **GREEDY)


@pytest.mark.parametrize("harm", [False, True])
@pytest.mark.parametrize("name", ["llama-q8_0", "lfm2-q8_0"])
def test_others_go_on_while_a_prefix_is_read(name: str, harm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / f"{name}.gguf"
    expected = anew(path, **SEEDED)
    keep(path, TEXT)
    with opened(path, n_sessions=2, spec="off") as llm, ThreadPoolExecutor(1) as asking:
        gate = Gate(monkeypatch, harm=harm)
        with another_answer(llm) as stream:
            found = asking.submit(ask, llm, **SEEDED)
            until(lambda: gate.n_asked)
            n_before = len(stream._sequence.tokens)
            until(lambda: len(stream._sequence.tokens) > n_before + 20)
            assert not found.done()
            gate.open.set()
            asked = found.result()
    assert asked.bits == expected
    assert (asked.n_from_disk == asked.n_most) is not harm


def test_several_wait_for_their_own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are read ahead at a time, and memory for a few pages of each."""
    monkeypatch.setattr(kept, "AHEAD_BYTES", 1)
    path, texts = DATA / "llama-q8_0.gguf", [f"{number} {TEXT}" for number in range(4)]
    expected = [anew(path, text, **SEEDED) for text in texts]
    keep(path, *texts)
    with opened(path, n_sessions=8, spec="off") as llm, ThreadPoolExecutor(4) as asking, another_answer(llm):
        found = [asking.submit(ask, llm, text, **SEEDED) for text in texts]
        for each, bits in zip(found, expected, strict=True):
            asked = each.result()
            assert asked == Asked(bits, asked.n_most, asked.n_most, asked.n_most)


def test_what_is_read_ahead_for_an_answer_that_is_given_up_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "llama-q8_0.gguf"
    keep(path, TEXT)
    with opened(path, n_sessions=2, spec="off") as llm, ThreadPoolExecutor(1) as asking:
        gate = Gate(monkeypatch)
        with another_answer(llm):
            left = llm.complete(TEXT, max_tokens=4)
            found = asking.submit(left.read)
            until(lambda: gate.n_asked)
            left.stop()
            gate.open.set()
            assert found.result() == ""
    assert left.stats is not None
    assert (left.stats.finish_reason, left.stats.n_from_disk) == ("cancelled", 0)


@contextmanager
def busy(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answers need the engine all the time, as far as whoever writes prefixes can tell."""
    monkeypatch.setattr(keeping, "LONGEST_WAIT_S", 1e9)
    on_disk = llm._driver.scheduler.admission.on_disk
    assert on_disk is not None
    with monkeypatch.context() as patched:
        patched.setattr(on_disk._writer, "_is_busy", lambda: True)
        yield


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma3-q8_0", "qwen35-q8_0"])
def test_a_text_that_loses_its_memory_is_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although all others have to wait for a quiet moment."""
    path = DATA / f"{name}.gguf"
    expected = anew(path, **SEEDED)
    with opened(path, n_sessions=2, spec="off") as llm, busy(llm, monkeypatch):
        ask(llm, **GREEDY)
        assert files() == []
        for number in range(4):  # more than memory has room for
            ask(llm, f"{number} {TEXT}", **GREEDY)
        until(files)
    with opened(path) as llm:
        asked = ask(llm, **SEEDED)
        assert asked == Asked(expected, asked.n_most, asked.n_most, asked.n_most)


def test_a_copy_is_free_once_it_is_written(uncollected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the next text is written: the copy may be as large as a context."""
    copied: list[weakref.ref[Bytes]] = []
    copy = PrefixWriter._copy

    def noted(writer: PrefixWriter, *given: Any) -> CopiedText | None:
        found = copy(writer, *given)
        if found is not None:
            copied.append(weakref.ref(found.pages))
        return found

    monkeypatch.setattr(PrefixWriter, "_copy", noted)
    with opened(DATA / "llama-q8_0.gguf", n_sessions=1, spec="off") as llm, busy(llm, monkeypatch):
        ask(llm, **GREEDY)
        ask(llm, f"another {TEXT}", **GREEDY)
        until(files)
        assert copied
        until(lambda: not any(each() is not None for each in copied))


def test_a_session_that_loses_its_memory_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "llama-q8_0.gguf"
    expected = anew(path, **SEEDED)
    with opened(path, n_sessions=1, spec="off") as llm, llm.session() as session, busy(llm, monkeypatch):
        session.complete(TEXT, max_tokens=12, **GREEDY).read()
        assert files() == []
        ask(llm, f"another {TEXT}", **GREEDY)
        until(files)
        assert session._cached.was_taken
    with opened(path) as llm:
        asked = ask(llm, **SEEDED)
        assert asked == Asked(expected, asked.n_most, asked.n_most, asked.n_most)


def test_of_a_lost_text_there_is_as_much_as_there_is_memory_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DATA / "llama-q8_0.gguf"
    expected = anew(path, **SEEDED)
    with opened(path, n_sessions=1, spec="off") as llm, busy(llm, monkeypatch):
        pages = llm._pool.executor.capabilities.pages
        assert pages is not None
        monkeypatch.setattr(keeping, "COPIES_BYTES", 5 * pages.page_bytes + 1)
        ask(llm, **GREEDY)
        ask(llm, f"another {TEXT}", **GREEDY)
        until(files)
    with opened(path) as llm:
        asked = ask(llm, **SEEDED)
        assert (asked.bits, asked.n_from_disk) == (expected, 5 * 64)


def test_a_prompt_ends_within_a_page() -> None:
    """The last page of a short answer's text is not whole; a longer text takes its beginning."""
    path = DATA / "llama-q8_0.gguf"
    prompt = TEXT[:440]
    longer = f"{prompt}and then something else"
    expected = {text: anew(path, text, **SEEDED) for text in (prompt, longer)}
    with opened(path) as llm:
        ask(llm, prompt, n=2, **GREEDY)
        n_prompt = len(llm.tokenize(prompt))
    assert n_prompt % 64 > 16
    for text, n_cached in ((prompt, n_prompt - 1), (longer, n_prompt)):
        with opened(path) as llm:
            asked = ask(llm, text, **SEEDED)
            assert asked.bits == expected[text]
            assert asked.n_cached == asked.n_from_disk == n_cached


def test_a_writer_that_fails_at_one_text_writes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason, and also if there was no thread for it."""
    path, write, start = DATA / "llama-q8_0.gguf", PrefixStore.write_pages, threading.Thread.start
    failed = list[object]()

    def failing(store: PrefixStore, *given: object) -> bool:
        if not failed:
            failed.append(given)
            raise RuntimeError("can't start new thread")
        return write(store, *given)  # type: ignore[arg-type]

    def full(thread: threading.Thread) -> None:
        if thread.name == "edgeinfer prefixes":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(PrefixStore, "write_pages", failing)
    with opened(path) as llm:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            ask(llm, TEXT[:500], **GREEDY)
        ask(llm, f"another {TEXT}", **GREEDY)
        until(lambda: failed)
        ask(llm, f"a third {TEXT}", **GREEDY)
        until(files)
    assert len(failed) == 1


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma3-q8_0", "qwen35-q8_0"])
@pytest.mark.parametrize("place", ["counted", "first", "last"])
def test_a_signal_while_a_prefix_is_put_back_leaves_nothing_that_was_not_read(
    name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DATA / f"{name}.gguf"
    expected = anew(path, **SEEDED)
    keep(path, TEXT)
    extend, verified = restoring._extended, PrefixStore.verified

    def extended(*given: object) -> bool:
        assert extend(*given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    def interrupted(store: PrefixStore, contents: Iterator[memoryview]) -> Iterator[memoryview]:
        for number, content in enumerate(verified(store, contents)):
            if number == {"first": 0, "last": 6}[place]:
                raise KeyboardInterrupt
            yield content

    with opened(path, spec="off") as llm, llm.session() as session:
        with monkeypatch.context() as patched:
            if place == "counted":
                patched.setattr(restoring, "_extended", extended)
            else:
                patched.setattr(PrefixStore, "verified", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.complete(TEXT, max_tokens=2).read()
        stream = session.complete(TEXT, max_tokens=12, logprobs=3, **SEEDED)
        assert bits(stream) == expected
        session.complete("another", max_tokens=2).read()
        with llm._pool.lock:
            assert llm._pool.executor.n_free_pages >= llm._pool.executor.limits.n_pages - 1


def test_a_text_in_very_many_files_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a conversation of many turns leaves it."""
    monkeypatch.setattr(store, "MOST_FILES", 4)
    path, prompt = DATA / "llama-q8_0.gguf", TEXT[:300]
    n_files = []
    with opened(path, spec="off") as llm, llm.session() as session:
        for turn in range(6):
            stream = session.complete(prompt, max_tokens=1, **GREEDY)
            stream.read()
            on_disk = llm._driver.scheduler.admission.on_disk
            assert on_disk is not None
            on_disk.finish()
            n_files.append(len(files()))
            prompt += f"turn {turn}, {TEXT[40:110]}"
    assert n_files == [1, 2, 3, 4, 4, 5]  # the fifth time all of it is written into the first one
    expected = anew(path, prompt, **GREEDY)
    with opened(path) as llm:
        found = ask(llm, prompt, **GREEDY)
        assert found.bits == expected
        assert found.n_from_disk >= 9 * 64


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), MemoryError(), OSError(24, "too many")])
@pytest.mark.parametrize("name", ["llama-q8_0", "qwen35-q8_0"])
def test_where_threads_or_memory_are_short_a_prompt_is_read(
    name: str, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = DATA / f"{name}.gguf"
    expected = anew(path, **SEEDED)
    keep(path, TEXT)

    def failing(*_: object) -> None:
        raise failure

    monkeypatch.setattr(PartsReader, "give", failing)
    with opened(path) as llm:
        asked = ask(llm, **SEEDED)
        assert (asked.bits, asked.n_from_disk) == (expected, 0)


def test_who_can_begin_does_not_wait_for_those_who_have_no_memory_for_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Background answers wait for memory that an interactive one may take."""
    path, texts = DATA / "llama-q8_0.gguf", [f"{number} {TEXT}" for number in range(3)]
    keep(path, *texts)
    with opened(path, n_sessions=1, spec="off") as llm:
        admission, on_disk = llm._driver.scheduler.admission, llm._driver.scheduler.admission.on_disk
        assert on_disk is not None
        ahead = [llm.complete(text, max_tokens=4)._sequence for text in texts]
        prompts = [each.request.prompt for each in ahead]
        gate = Gate(monkeypatch)
        with llm._pool.lock:
            for sequence, prompt in zip(ahead[: kept.MOST_AHEAD], prompts, strict=False):
                assert on_disk.is_coming(sequence.cached, prompt, (), 0)
            assert on_disk.is_coming(ahead[2].cached, prompts[2], (), 0)
            gate.open.set()
            until(lambda: all(each is not None and each.reading.is_ahead for each in on_disk._ahead.values()))
            assert not on_disk.is_coming(ahead[2].cached, prompts[2], (), 0)
            for sequence in ahead:
                on_disk.forget(sequence.cached)
        assert admission.sequences == ()
