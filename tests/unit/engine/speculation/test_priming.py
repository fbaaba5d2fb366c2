"""The table of every token's likeliest successors: what the model says, made in idle time or on request, and kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation import priming
from edgeinfer.engine.speculation.priming import IdlePriming, Priming
from edgeinfer.engine.speculation.records import BEST, TOKEN_BITS
from edgeinfer.engine.speculation.setup import priming_of
from edgeinfer.errors import EdgeInferError
from edgeinfer.graph.step import Int32s
from edgeinfer.settings import Mode
from tests.golden.goldens import DATA
from tests.waiting import until


@pytest.fixture
def llm(tiny_model: Path, home: Path) -> Iterator[LLM]:
    with load(tiny_model, threads=1, n_context=128) as found:
        yield found


def test_rows_are_what_the_model_says(llm: LLM) -> None:
    assert llm.drafts is not None
    made = priming_of(llm._pool.executor, llm._tokenizer, llm.drafts)
    rows = np.concatenate([made.rows(first, 50) for first in range(0, llm.drafts.n_vocab, 50)])
    assert rows.shape == (llm.drafts.n_vocab, BEST)
    for token in (3, 40, 100, llm.drafts.n_vocab - 1):
        text = [*llm.tokenize("\n"), token]
        with llm.session() as session:
            batch = session._cached.chain(text, wants_logits=True)
            logits = session._cached.evaluate(batch)[0, : llm.drafts.n_vocab]
            wanted = np.argsort(-logits, kind="stable")[:BEST]
        assert (rows[token] & ((1 << TOKEN_BITS) - 1)).tolist() == wanted.tolist()
    assert len(made.rows(llm.drafts.n_vocab)) == 0


def test_no_memory_is_kept_and_none_taken_from_others(llm: LLM) -> None:
    executor = llm._pool.executor
    assert llm.drafts is not None
    made, free = priming_of(executor, llm._tokenizer, llm.drafts), executor.n_free_pages
    made.rows(0)
    assert executor.n_free_pages == free
    held = [executor.create() for _ in range(free - 2)]
    for sequence in held:
        executor._cache.refill(sequence, 1)
    assert len(made.rows(0)) == 0


def test_nothing_is_primed_where_all_states_are_held(home: Path) -> None:
    with load(DATA / "qwen35-q8_0.gguf", threads=1, n_context=64) as llm:
        executor, drafts = llm._pool.executor, llm.drafts
        assert drafts is not None
        made = priming_of(executor, llm._tokenizer, drafts)
        assert len(made.rows(0))
        states = executor._cache.states
        held = [executor.create() for _ in range(states.slots.n_slots)]
        for sequence in held:
            states.adopt(sequence)
        assert len(made.rows(0)) == 0
        executor.free(held.pop())
        executor.free(held.pop())
        assert len(made.rows(0))


def test_a_primed_model_is_primed_the_next_time(tiny_model: Path, home: Path) -> None:
    shown = []
    with load(tiny_model, threads=1) as llm:
        llm.prime(lambda what, done, total: shown.append((done, total)))
        assert llm.drafts is not None
        n_vocab = llm.drafts.n_vocab
    assert shown[0][0] == 0
    assert shown[-1] == (n_vocab, n_vocab)
    with load(tiny_model, threads=1) as llm:
        assert llm.drafts is not None
        assert llm.drafts.n_primed == n_vocab
    with load(tiny_model, threads=1, spec="off") as llm, pytest.raises(EdgeInferError, match="nothing is drafted"):
        llm.prime()


@pytest.mark.parametrize(("mode", "used"), [("max", True), ("balanced", True), ("quiet", False), ("battery", False)])
def test_idle_time_is_left_alone_in_sparing_modes(tiny_model: Path, home: Path, mode: Mode, used: bool) -> None:
    with load(tiny_model, device="reference", mode=mode) as llm:
        llm._pool._rests_since -= 60
        assert (llm._idle_s() >= 60) == used


def test_idle_time_is_used_where_history_is_kept(tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priming, "IDLE_S", 0.0)
    with load(tiny_model, threads=1, history=True) as llm:
        drafts = llm.drafts
        assert drafts is not None
        until(lambda: drafts.n_primed == drafts.n_vocab)
    with load(tiny_model, threads=1) as llm:
        assert llm.drafts is not None
        assert llm.drafts.n_primed == llm.drafts.n_vocab
        assert llm._idle_priming is None


class Counted(Priming):
    """Rows of nothing."""

    def __init__(self) -> None:
        self.n_asked = 0

    def rows(self, first: int, most: int = 8) -> Int32s:
        self.n_asked += 1
        return np.zeros((most, BEST), np.int32)


def test_nothing_is_primed_while_someone_generates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priming, "LOOK_S", 0.001)
    idle_s, made, taken = [0.0], Counted(), []
    busy = IdlePriming(made, 0, threading.RLock(), lambda: idle_s[0], lambda first, rows: taken.append(first))
    try:
        time.sleep(0.1)
        assert made.n_asked == 0
        idle_s[0] = 10.0
        until(lambda: len(taken) > 3)
        idle_s[0] = 0.0
        asked = made.n_asked
        time.sleep(0.1)
        assert made.n_asked <= asked + 1  # it may have looked just before
        assert taken == sorted(set(taken))
    finally:
        busy.close()
        busy.close()
    assert not busy._thread.is_alive()
