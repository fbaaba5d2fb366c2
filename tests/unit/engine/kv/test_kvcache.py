"""Page accounting against a dictionary of token lists, through a lane that stores token ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edgeinfer.engine.kv import kvcache
from edgeinfer.engine.kv.kvcache import FEW, Copies, KVCache, pages_for
from edgeinfer.errors import ContextOverflow, DoesNotFit
from edgeinfer.graph.step import PAGE, Batch
from tests.unit.engine.lane import SlotLane

N_PAGES = 9
N_CONTEXT = 4 * PAGE


def make_batch(parts: list[tuple[int, int, list[int], list[int]]]) -> Batch:
    """A batch of (sequence, n_cached, tokens, parents within the part) in order."""
    tokens, sequences, positions, parents = [], [], [], []
    for sequence, n_cached, part_tokens, part_parents in parts:
        base = len(tokens)
        for token, parent in zip(part_tokens, part_parents, strict=True):
            tokens.append(token)
            sequences.append(sequence)
            positions.append(n_cached if parent < 0 else positions[base + parent] + 1)
            parents.append(parent if parent < 0 else base + parent)
    arrays = (np.array(values, np.int32) for values in (tokens, sequences, positions, parents, range(len(tokens))))
    return Batch(*arrays)


def run(cache: KVCache, lane: SlotLane, batch: Batch) -> None:
    placement = cache.place(batch)
    apply(placement.copies, lane)
    lane.run(placement.step)


def apply(copies: Copies, lane: SlotLane) -> None:
    if len(copies.sources):
        lane.copy_slots(copies.sources, copies.targets)


def ancestors(batch: Batch, index: int) -> list[int]:
    path = []
    while index >= 0:
        path.append(index)
        index = int(batch.parents[index])
    return path[::-1]


class CacheMachine(RuleBasedStateMachine):
    """Random batches of trees, commits, branches, truncations: the lane must always see the model's tokens."""

    @initialize()
    def start(self) -> None:
        self.cache, self.lane = KVCache(N_PAGES, N_CONTEXT), SlotLane(N_PAGES)
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
        members = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=3, unique=True))
        parts = []
        for sequence in members:
            n_chain = data.draw(st.sampled_from([0, 1, 3, PAGE - 1, PAGE, PAGE + 1, 100]))
            n_tree = data.draw(st.integers(0 if n_chain else 1, 12))
            parents = list(range(-1, n_chain - 1))
            for index in range(n_chain, n_chain + n_tree):
                parents.append(data.draw(st.integers(max(-1, n_chain - 1), index - 1)))
            tokens = list(range(self.next_token, self.next_token + len(parents)))
            self.next_token += len(parents)
            parts.append((sequence, len(self.model[sequence]), tokens, parents))
        batch = make_batch(parts)
        free_before = self._free_without_pending()
        try:
            run(self.cache, self.lane, batch)
        except ContextOverflow:
            assert int(batch.positions.max()) >= N_CONTEXT
            self._refused(free_before)
            return
        except DoesNotFit:
            assert int(batch.positions.max()) < N_CONTEXT
            assert sum(self._wanted_pages(batch, sequence) for sequence in members) > free_before
            self._refused(free_before)
            return
        self.batch, self.open = batch, set(members)
        for index, seen in enumerate(self.lane.seen):
            sequence = int(batch.sequences[index])
            assert seen == self.model[sequence] + batch.tokens[ancestors(batch, index)].tolist()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(sorted(self.open)))
        last = data.draw(st.sampled_from([-1, *np.flatnonzero(self.batch.sequences == sequence).tolist()]))
        path = np.array(ancestors(self.batch, last), np.int32)
        apply(self.cache.commit(sequence, path), self.lane)
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
        n_kept = data.draw(st.integers(0, len(self.model[sequence])))
        self.cache.truncate(sequence, n_kept)
        del self.model[sequence][n_kept:]
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
    def copy_state(self, data: st.DataObject) -> None:
        source, target = (data.draw(st.sampled_from(sorted(self.model))) for _ in range(2))
        contents = self.lane.read_pages(self.cache.pages(source))
        tokens = list(self.model[source])
        self.open.discard(target)
        try:
            pages = self.cache.refill(target, len(tokens))
        except DoesNotFit:
            self.model[target] = []
            return
        self.lane.write_pages(pages, contents)
        self.model[target] = tokens

    @invariant()
    def contents_agree(self) -> None:
        for sequence, tokens in getattr(self, "model", {}).items():
            pages = self.cache.pages(sequence)
            held = self.lane.slots.reshape(-1, PAGE)[pages].ravel()[: len(tokens)]
            assert held.tolist() == tokens
            assert self.cache.n_cached(sequence) == len(tokens)

    def _wanted_pages(self, batch: Batch, sequence: int) -> int:
        """The most new pages a sequence may want: to grow, for siblings, and for a copy of a shared last page."""
        positions = batch.positions[batch.sequences == sequence]
        grown = pages_for(int(positions.max()) + 1) - pages_for(len(self.model[sequence]))
        return grown + pages_for(len(positions) - len(set(positions.tolist()))) + 1

    def _refused(self, free_before: int) -> None:
        assert self.cache.n_free_pages == free_before
        self.batch, self.open = None, set()

    def _free_without_pending(self) -> int:
        used = {page for sequence in self.model for page in self.cache.pages(sequence).tolist()}
        return N_PAGES - len(used)

    def teardown(self) -> None:
        for sequence in getattr(self, "model", {}):
            self.cache.free(sequence)
        if hasattr(self, "cache"):
            assert self.cache.n_free_pages == N_PAGES


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCacheMachine = CacheMachine.TestCase


def test_the_first_token_at_each_position_takes_the_slot_of_the_table() -> None:
    cache = KVCache(4, N_CONTEXT)
    sequence = cache.create()
    step = cache.place(make_batch([(sequence, 0, [5, 6, 7, 8], [-1, 0, 0, 1])])).step
    table_slots = step.tables[0][0] * PAGE + np.arange(3)
    assert step.slots[[0, 1, 3]].tolist() == table_slots.tolist()
    assert step.slots[2] // PAGE != step.tables[0][0]
    assert step.starts.tolist() == [0, 0, 0, 0]


@given(st.integers(0, 2 * PAGE), st.lists(st.integers(-1, 20), min_size=2, max_size=70), st.booleans())
def test_few_tokens_are_placed_as_many_are(n_cached: int, wild: list[int], shares: bool) -> None:
    parents = [min(parent, node - 1) for node, parent in enumerate(wild)]
    placed = []
    for few in (FEW, 0):
        cache = KVCache(N_PAGES, N_CONTEXT)
        sequence = cache.create()
        if n_cached:
            cache.place(make_batch([(sequence, 0, [1] * n_cached, list(range(-1, n_cached - 1)))]))
            cache.commit(sequence, np.arange(n_cached, dtype=np.int32))
        if shares:
            cache.branch(sequence)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kvcache, "FEW", few)
            placement = cache.place(make_batch([(sequence, n_cached, [2] * len(wild), parents)]))
        step, copies = placement.step, placement.copies
        placed.append((step.slots, step.rows, step.starts, step.tables, copies.sources, copies.targets))
        cache.free(sequence)
        assert cache.n_free_pages == N_PAGES - (pages_for(n_cached) if shares else 0)
    for one, other in zip(*placed, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.int32


def test_an_accepted_sibling_is_moved_into_the_table() -> None:
    cache = KVCache(4, N_CONTEXT)
    sequence = cache.create()
    step = cache.place(make_batch([(sequence, 0, [5, 6, 7], [-1, 0, 0])])).step
    copies = cache.commit(sequence, np.array([0, 2], np.int32))
    assert copies.sources.tolist() == [step.slots[2]]
    assert copies.targets.tolist() == [step.slots[1]]
    assert cache.n_free_pages == 3


def test_a_branch_shares_pages_until_one_of_the_two_writes() -> None:
    cache, lane = KVCache(6, N_CONTEXT), SlotLane(6)
    sequence = cache.create()
    run(cache, lane, make_batch([(sequence, 0, list(range(PAGE + 3)), list(range(-1, PAGE + 2)))]))
    cache.commit(sequence, np.arange(PAGE + 3, dtype=np.int32))
    twin = cache.branch(sequence)
    assert cache.n_free_pages == 4
    placement = cache.place(make_batch([(twin, PAGE + 3, [99], [-1])]))
    assert len(placement.copies.sources) == 3
    assert cache.n_free_pages == 3
    assert cache.pages(twin)[0] == cache.pages(sequence)[0]


def test_lack_of_pages_and_of_context_say_the_numbers() -> None:
    cache = KVCache(2, N_CONTEXT)
    sequence = cache.create()
    with pytest.raises(DoesNotFit, match=r"3 pages of 64 tokens are needed, 2 of 2 are free"):
        cache.place(make_batch([(sequence, 0, [1] * (2 * PAGE + 1), list(range(-1, 2 * PAGE)))]))
    with pytest.raises(ContextOverflow, match=r"257 tokens do not fit in the context of 256"):
        cache.place(make_batch([(sequence, 0, [1] * 257, list(range(-1, 256)))]))


@pytest.mark.parametrize(
    ("parents", "positions"), [([-1, 1], [0, 1]), ([-1, 0], [0, 2]), ([-1, -1], [0, 1]), ([0, -1], [0, 0])]
)
def test_a_batch_whose_parents_or_positions_are_wrong_is_refused(parents: list[int], positions: list[int]) -> None:
    cache = KVCache(2, N_CONTEXT)
    sequences = np.full(2, cache.create(), np.int32)
    batch = Batch(*(np.array(v, np.int32) for v in ([1, 2], sequences, positions, parents, [])))
    with pytest.raises(ValueError, match="parents"):
        cache.place(batch)


def test_a_path_that_is_no_chain_and_unknown_sequences_are_refused() -> None:
    cache = KVCache(2, N_CONTEXT)
    sequence = cache.create()
    with pytest.raises(ValueError, match="nothing pending"):
        cache.commit(sequence, np.array([0], np.int32))
    cache.place(make_batch([(sequence, 0, [1, 2, 3], [-1, 0, 0])]))
    with pytest.raises(ValueError, match="not a chain"):
        cache.commit(sequence, np.array([0, 1, 2], np.int32))
    with pytest.raises(ValueError, match="there is no sequence 7"):
        cache.truncate(7, 0)
    with pytest.raises(ValueError, match="cannot keep 1"):
        cache.truncate(sequence, 1)


def test_pages_for() -> None:
    assert [pages_for(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]
