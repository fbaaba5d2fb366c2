"""Places of pages in layers that keep a window, against token lists, through a lane that stores token ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.engine.kv.kvcache import KVCache, pages_for
from edgeinfer.errors import ContextOverflow, DoesNotFit
from edgeinfer.graph.operands import Windows
from edgeinfer.graph.step import PAGE, Batch, Int32s, Step
from tests.unit.engine.kv.test_kvcache import ancestors, make_batch
from tests.unit.engine.lane import EMPTY, SlotLane

N_PAGES, N_CONTEXT = 24, 8 * PAGE
WINDOWS = Windows(tokens=100, n_pages=11, n_spare=3)


class WindowLane(SlotLane):
    """Keeps token ids for the places of windows too; `in_window`: the ids each token sees there, the last WINDOW."""

    def __init__(self) -> None:
        super().__init__(N_PAGES)
        self.places = np.full(N_PAGES, -1, np.int32)
        self.kept = np.full(WINDOWS.n_pages * PAGE, EMPTY, np.int32)
        self.in_window: list[list[int]] = []

    @property
    def capabilities(self) -> LaneCapabilities:
        return LaneCapabilities(windows=self)

    def assign(self, pages: Int32s, places: Int32s) -> None:
        assert len(set(places.tolist())) == len(places)
        self.places[pages] = places

    def run(self, step: Step) -> np.ndarray:
        self.kept[self._located(step.slots)] = step.batch.tokens
        logits = super().run(step)
        seen = [step.context_slots(token)[-WINDOWS.tokens :] for token in range(len(step.slots))]
        self.in_window = [self.kept[self._located(slots)].tolist() for slots in seen]
        return logits

    def copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        super().copy_slots(sources, targets)
        self.kept[self._located(targets)] = self.kept[self._located(sources)]

    def _located(self, slots: np.ndarray) -> np.ndarray:
        places = self.places[slots // PAGE]
        assert np.all(places >= 0)
        return places * PAGE + slots % PAGE


class WindowMachine(RuleBasedStateMachine):
    """Chains, trees, commits, branches, going back: a token always sees its window, and going back tells how far."""

    @initialize()
    def start(self) -> None:
        self.cache, self.lane = KVCache(N_PAGES, N_CONTEXT, windows=WINDOWS), WindowLane()
        self.model: dict[int, list[int]] = {}
        self.batch: Batch | None = None
        self.open: set[int] = set()
        self.next_token = 1

    @rule()
    def create(self) -> None:
        self.model[self.cache.create()] = []

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def evaluate(self, data: st.DataObject) -> None:
        members = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=2, unique=True))
        parts = []
        for sequence in members:
            n_chain = data.draw(st.sampled_from([0, 1, 3, PAGE, 100, 150]))
            n_tree = data.draw(st.integers(0 if n_chain else 1, 6))
            parents = list(range(-1, n_chain - 1))
            for index in range(n_chain, n_chain + n_tree):
                parents.append(data.draw(st.integers(max(-1, n_chain - 1), index - 1)))
            tokens = list(range(self.next_token, self.next_token + len(parents)))
            self.next_token += len(parents)
            parts.append((sequence, len(self.model[sequence]), tokens, parents))
        batch = make_batch(parts)
        self.batch, self.open = None, set()
        try:
            placement = self.cache.place(batch)
        except (ContextOverflow, DoesNotFit):
            return
        self.cache.windows.tell(self.lane)
        self._apply(placement.copies)
        self.lane.run(placement.step)
        self.batch, self.open = batch, set(members)
        for index, seen in enumerate(self.lane.in_window):
            text = self.model[int(batch.sequences[index])] + batch.tokens[ancestors(batch, index)].tolist()
            assert seen == text[-WINDOWS.tokens :]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.open)))
        last = data.draw(st.sampled_from([-1, *np.flatnonzero(self.batch.sequences == sequence).tolist()]))
        path = np.array(ancestors(self.batch, last), np.int32)
        self._apply(self.cache.commit(sequence, path))
        self.model[sequence] += self.batch.tokens[path].tolist()
        self.open.discard(sequence)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def branch(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        self.model[self.cache.branch(sequence)] = list(self.model[sequence])
        self.open.discard(sequence)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        wanted = data.draw(st.integers(0, len(self.model[sequence])))
        reached = self.cache.truncate(sequence, wanted)
        assert reached == wanted or (reached < wanted and reached % PAGE == 0)
        del self.model[sequence][reached:]
        self.open.discard(sequence)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.model)))
        self.cache.free(sequence)
        del self.model[sequence]
        self.open.discard(sequence)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def refill(self, data: st.DataObject) -> None:
        source, target = (data.draw(st.sampled_from(sorted(self.model))) for _ in range(2))
        tokens = list(self.model[source])
        self.open.discard(target)
        try:
            pages = self.cache.refill(target, len(tokens))
        except DoesNotFit:
            self.model[target] = []
            return
        self.cache.windows.tell(self.lane)
        padded = np.array(tokens + [0] * (-len(tokens) % PAGE), np.int32).reshape(-1, PAGE)
        self.lane.write_pages(pages, padded)
        first = self.cache.windows.first_page(len(tokens))
        self.lane.kept.reshape(-1, PAGE)[self.lane.places[pages[first:]]] = padded[first:]
        self.model[target] = tokens

    @invariant()
    def windows_agree(self) -> None:
        for sequence, tokens in getattr(self, "model", {}).items():
            assert self.cache.n_cached(sequence) == len(tokens)
            first = self.cache.windows.first_page(len(tokens))
            held = self.lane.kept.reshape(-1, PAGE)[self.lane.places[self.cache.pages(sequence)[first:]]].ravel()
            assert held[: len(tokens) - first * PAGE].tolist() == tokens[first * PAGE :]

    def _apply(self, copies: object) -> None:
        copies.apply(self.lane)

    def teardown(self) -> None:
        for sequence in getattr(self, "model", {}):
            self.cache.free(sequence)
        if hasattr(self, "cache"):
            assert self.cache.windows.n_free == WINDOWS.n_pages
            assert self.cache.n_free_pages == N_PAGES


WindowMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestWindowMachine = WindowMachine.TestCase


def grown(n_tokens: int) -> tuple[KVCache, int]:
    """A cache with one sequence of so many tokens, read in passes of 50."""
    cache = KVCache(N_PAGES, N_CONTEXT, windows=WINDOWS)
    sequence = cache.create()
    for start in range(0, n_tokens, 50):
        count = min(50, n_tokens - start)
        cache.place(make_batch([(sequence, start, [1] * count, list(range(-1, count - 1)))]))
        cache.commit(sequence, np.arange(count, dtype=np.int32))
    return cache, sequence


def test_going_back_a_little_costs_nothing() -> None:
    cache, sequence = grown(N_CONTEXT)
    assert cache.truncate(sequence, N_CONTEXT - 200) == N_CONTEXT - 200


def test_going_back_beyond_what_is_kept_begins_anew() -> None:
    cache = KVCache(N_PAGES, 20 * PAGE, windows=WINDOWS)
    sequence = cache.create()
    for start in range(0, 20 * PAGE, PAGE):
        cache.place(make_batch([(sequence, start, [1] * PAGE, list(range(-1, PAGE - 1)))]))
        cache.commit(sequence, np.arange(PAGE, dtype=np.int32))
    assert cache.windows.n_free >= WINDOWS.n_spare
    assert cache.truncate(sequence, 5 * PAGE) == 0


def test_windows_in_use_are_never_taken() -> None:
    cache, sequence = grown(300)
    for _ in range(3):  # the windows of all four are on 2 + 3 * 3 pages
        other = cache.create()
        cache.place(make_batch([(other, 0, [1] * 150, list(range(-1, 149)))]))
        cache.commit(other, np.arange(150, dtype=np.int32))
    batch = make_batch([(cache.create(), 0, [1] * 150, list(range(-1, 149)))])
    with pytest.raises(DoesNotFit, match=r"3 pages of 64 tokens are needed, 0 of 11 are free"):
        cache.place(batch)
    assert cache.truncate(sequence, 300) == 300
    assert cache.windows.reach(cache.pages(sequence).tolist(), 300) == 300


def test_a_page_shared_by_two_keeps_its_place_until_both_are_past_it() -> None:
    cache, sequence = grown(100)
    twin = cache.branch(sequence)
    for start in range(100, N_CONTEXT - 50, 50):
        cache.place(make_batch([(sequence, start, [1] * 50, list(range(-1, 49)))]))
        cache.commit(sequence, np.arange(50, dtype=np.int32))
    cache.place(make_batch([(twin, 100, [1], [-1])]))
    cache.windows.free_up(WINDOWS.n_pages, cache._sequences.values(), cache._references)
    assert cache.windows.reach(cache.pages(twin).tolist(), 100) == 100


def test_the_first_page_is_that_of_the_oldest_position_the_next_token_sees() -> None:
    windows = KVCache(N_PAGES, N_CONTEXT, windows=WINDOWS).windows
    for n_cached in range(N_CONTEXT):
        oldest = max(0, n_cached - WINDOWS.tokens + 1)
        assert windows.first_page(n_cached) == oldest // PAGE
        assert pages_for(n_cached + 1) - windows.first_page(n_cached) <= pages_for(WINDOWS.tokens) + 1
