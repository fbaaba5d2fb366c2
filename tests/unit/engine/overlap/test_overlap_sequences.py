"""Sequences that come, read, branch, are cut back, saved, restored and freed while others are under way, in any order.

When a batch is done depends on threads, so what is drawn is not the same in every run of a seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.scheduling.batch.schedules import SCHEDULES
from tests.golden.goldens import Golden, distance
from tests.unit.engine.overlap.journeys import (
    EACH,
    LIMITS,
    NEARLY,
    accelerator,
    alone,
    chain,
    cpu,
    overlapping,
)

MOST_SEQUENCES = 7
MOST_TOKENS = EACH - 24
Opened = dict[str, tuple[OverlapExecutor, Executor]]


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    """Each model on both sides, and alone."""
    with ExitStack() as stack:
        found = {}
        for name in ("llama-f32", "gemma2-f32", "qwen2-f32"):
            golden = Golden.read(name)
            executor = stack.enter_context(overlapping(golden, accelerator("reference"), "overlap", n_resident=3))
            found[name] = executor, stack.enter_context(alone(golden, cpu()))
        yield found


class World:
    """What should be cached of each sequence, and what is under way of it."""

    def __init__(self, executor: OverlapExecutor, single: Executor, seed: int) -> None:
        self.executor, self.single = executor, single
        self.texts: dict[int, list[int]] = {}
        self.under_way: dict[int, Batch] = {}
        self.rng = np.random.default_rng(seed)

    def act(self) -> None:
        """One thing of many."""
        acts = [self.advance] * 6
        if len(self.texts) < MOST_SEQUENCES:
            acts += [self.create, self.create]
        if self.texts:
            acts += [self.truncate, self.branch, self.free, self.evaluate, self.restore, self.use]
        acts[self.rng.integers(len(acts))]()
        self.check()

    def maybe(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def use(self) -> None:
        self.executor.use(str(self.rng.choice(SCHEDULES)))

    def create(self) -> None:
        self.texts[self.executor.create(EACH)] = []

    def some(self) -> int:
        return int(self.rng.choice(list(self.texts)))

    def truncate(self) -> None:
        sequence = self.some()
        n_kept = int(self.rng.integers(0, len(self.texts[sequence]) + 1))
        self.executor.truncate(sequence, n_kept)
        del self.texts[sequence][n_kept:]
        self.under_way.pop(sequence, None)

    def branch(self) -> None:
        sequence = self.some()
        self.texts[self.executor.branch(sequence)] = list(self.texts[sequence])
        self.under_way.pop(sequence, None)

    def free(self) -> None:
        sequence = self.some()
        self.executor.free(sequence)
        del self.texts[sequence]
        self.under_way.pop(sequence, None)

    def restore(self) -> None:
        source, target = self.some(), self.some()
        state = self.executor.save(source)
        try:
            self.executor.restore(target, state)
        except DoesNotFit:
            self.executor.truncate(target, 0)
            self.texts[target] = []
        else:
            self.texts[target] = list(self.texts[source])
        self.under_way.pop(target, None)

    def evaluate(self) -> None:
        """Tokens or a tree of one or two idle sequences."""
        idle = [sequence for sequence in self.texts if self.may_read(sequence)][:2]
        parts = {sequence: self.batch(sequence, self.maybe()) for sequence in idle}
        if not parts:
            return
        try:
            logits = self.executor.evaluate(joined(list(parts.values())))
        except DoesNotFit:  # branches grew beyond what was set aside: nothing has happened
            return
        self.arrive(parts, logits, joined_at(parts))

    def advance(self) -> None:
        """Start some batches and make a pass."""
        started = [sequence for sequence in self.texts if self.may_read(sequence) and self.maybe()]
        batches = {sequence: self.batch(sequence, self.maybe()) for sequence in started}
        try:
            done = self.executor.advance(list(batches.values()))
        except DoesNotFit:
            batches, done = {}, self.executor.advance([])
        self.under_way.update(batches)
        for sequence, logits in done.items():
            self.arrive({sequence: self.under_way.pop(sequence)}, logits, {sequence: 0})
        assert self.executor.in_flight == self.under_way.keys()

    def may_read(self, sequence: int) -> bool:
        return sequence not in self.under_way and len(self.texts[sequence]) < MOST_TOKENS

    def batch(self, sequence: int, is_tree: bool) -> Batch:
        n_cached, n_tokens = len(self.texts[sequence]), int(self.rng.integers(1, 8))
        batch = chain(sequence, n_cached, self.rng.integers(0, 200, n_tokens).tolist())
        if not is_tree:
            return batch
        parents = np.array([int(self.rng.integers(-1, node)) for node in range(n_tokens)], np.int32)
        positions: list[int] = []
        for parent in parents.tolist():
            positions.append(n_cached if parent < 0 else positions[parent] + 1)
        return Batch(batch.tokens, batch.sequences, np.array(positions, np.int32), parents, batch.outputs)

    def arrive(self, parts: dict[int, Batch], logits: Floats, starts: dict[int, int]) -> None:
        """Compare the logits with those of the text alone, and keep a path, or nothing."""
        for sequence, batch in parts.items():
            first = starts[sequence]
            for node in (0, len(batch.tokens) - 1):
                path = path_of(batch, node)
                text = [*self.texts[sequence], *batch.tokens[path].tolist()]
                assert distance(logits[first + node], self.read(text)) < NEARLY
            if self.maybe():
                path = path_of(batch, int(self.rng.integers(len(batch.tokens))))
                self.executor.commit(sequence, np.array(path, np.int32) + np.int32(first))
                self.texts[sequence] += batch.tokens[path].tolist()

    def read(self, text: list[int]) -> Floats:
        """The last logits of a text that is read alone."""
        sequence, last = self.single.create(), np.zeros(0, np.float32)
        for start in range(0, len(text), LIMITS.max_tokens):
            part = text[start : start + LIMITS.max_tokens]
            last = self.single.evaluate(chain(sequence, start, part))[-1]
            self.single.commit(sequence, np.arange(len(part), dtype=np.int32))
        self.single.free(sequence)
        return last

    def check(self) -> None:
        for sequence, text in self.texts.items():
            assert self.executor.n_cached(sequence) == len(text)

    def end(self) -> None:
        """Free everything: no page stays behind."""
        for sequence in tuple(self.texts):
            self.executor.free(sequence)
        assert self.executor.in_flight == frozenset()
        assert self.executor.n_free_pages == 6 + LIMITS.n_pages


def path_of(batch: Batch, node: int) -> list[int]:
    """A token of a batch with its ancestors, oldest first."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = int(batch.parents[node])
    return path[::-1]


def joined(batches: list[Batch]) -> Batch:
    """Several batches as one, one after the other."""
    starts = np.cumsum([0, *(len(batch.tokens) for batch in batches)])
    parents = [np.where(b.parents < 0, -1, b.parents + at) for b, at in zip(batches, starts, strict=False)]
    return Batch(
        np.concatenate([batch.tokens for batch in batches]),
        np.concatenate([batch.sequences for batch in batches]),
        np.concatenate([batch.positions for batch in batches]),
        np.concatenate(parents).astype(np.int32),
        np.arange(starts[-1], dtype=np.int32),
    )


def joined_at(parts: dict[int, Batch]) -> dict[int, int]:
    """Where each batch begins in the joined one."""
    starts = np.cumsum([0, *(len(batch.tokens) for batch in parts.values())]).tolist()
    return dict(zip(parts, starts, strict=False))


@pytest.mark.parametrize("seed", range(24))
def test_sequences_live_their_lives(opened: Opened, seed: int) -> None:
    executor, single = opened[sorted(opened)[seed % len(opened)]]
    world = World(executor, single, seed)
    try:
        for _ in range(60):
            world.act()
    finally:
        world.end()
