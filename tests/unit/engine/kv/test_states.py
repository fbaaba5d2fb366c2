"""States of sequences: whatever happens to sequences, a pass begins with the state of the text before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.states import ZEROS, StateSlots
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import PAGE, Batch, Step

N_CONTEXT = 8 * PAGE
Text = tuple[int, ...]


class TextStates:
    """A lane whose states are the texts that led to them."""

    slot_bytes = 0

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._texts: list[Text] = [()] * n_slots
        self._after: list[Text] = []

    def run(self, step: Step) -> list[Text]:
        """The text up to each token, by the states that the pass begins with; saves what the step says."""
        assert step.states is not None
        self._after = []
        for token, parent in enumerate(step.batch.parents.tolist()):
            slot = int(step.states.loads[step.rows[token]])
            before = self._after[parent] if parent >= 0 else () if slot == ZEROS else self._texts[slot]
            self._after.append((*before, int(step.batch.tokens[token])))
        loads = set(step.states.loads.tolist())
        for row, n_tokens, slot in step.states.saves.tolist():
            assert slot not in loads, "a state that is read in the pass is not written"
            self._texts[slot] = self._after[int(step.states.firsts[row]) + n_tokens - 1]
        return self._after

    def advance(self, source: int, target: int, nodes: Sequence[int]) -> None:
        assert self._after[nodes[0]][:-1] == self._texts[source]
        self._texts[target] = self._after[nodes[-1]]

    def read(self, slots: Sequence[int]) -> NDArray[np.uint8]:
        raise NotImplementedError

    def write(self, slots: Sequence[int], contents: NDArray[np.uint8]) -> None:
        raise NotImplementedError


class NoPages:
    """Keys and values do not matter here."""

    resident_bytes = 0

    def copy_slots(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None: ...

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.uint8]:
        raise NotImplementedError

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.uint8]) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class Texts:
    """A cache with states, and what each sequence should hold."""

    def __init__(self, n_states: int, n_pages: int = 40) -> None:
        self.cache, self.lane = KVCache(n_pages, N_CONTEXT, n_states), TextStates(n_states)
        self.texts: dict[int, Text] = {}
        self.draw = np.random.default_rng(3)

    def create(self) -> int:
        sequence = self.cache.create()
        self.texts[sequence] = ()
        return sequence

    def branch(self, sequence: int) -> int:
        twin = self.cache.branch(sequence)
        self.texts[twin] = self.texts[sequence]
        return twin

    def free(self, sequence: int) -> None:
        self.cache.free(sequence)
        del self.texts[sequence]

    def truncate(self, sequence: int, n_cached: int) -> int:
        reached = self.cache.truncate(sequence, n_cached)
        assert reached <= n_cached
        self.texts[sequence] = self.texts[sequence][:reached]
        return reached

    def read(self, sequence: int, n_tokens: int) -> None:
        """A chain, of which the last token's logits are wanted."""
        self.evaluate({sequence: [*range(-1, n_tokens - 1)]}, {sequence: [n_tokens - 1]})
        self.keep(sequence, [*range(n_tokens)])

    def evaluate(self, parents: dict[int, list[int]], outputs: dict[int, list[int]]) -> None:
        """One pass over trees of several sequences."""
        tokens: list[int] = []
        above: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        self.starts: dict[int, int] = {}
        for sequence, own in parents.items():
            first = self.starts[sequence] = len(tokens)
            for parent in own:
                above.append(parent + first if parent >= 0 else -1)
                positions.append(positions[above[-1]] + 1 if parent >= 0 else len(self.texts[sequence]))
                tokens.append(int(self.draw.integers(1000)))
            wanted += [first + output for output in outputs[sequence]]
        sequences = [sequence for sequence, own in parents.items() for _ in own]
        arrays = (np.array(each, np.int32) for each in (tokens, sequences, positions, above, wanted))
        self.batch = Batch(*arrays)
        placement = self.cache.place(self.batch)
        after = self.lane.run(placement.step)
        for token, text in enumerate(after):
            sequence = sequences[token]
            path, node = [], token
            while node >= 0:
                path.append(tokens[node])
                node = above[node]
            assert text == (*self.texts[sequence], *path[::-1])

    def keep(self, sequence: int, path: list[int]) -> None:
        nodes = [node + self.starts[sequence] for node in path]
        self.cache.commit(sequence, np.array(nodes, np.int32)).apply(NoPages(), self.lane)
        self.texts[sequence] += tuple(int(self.batch.tokens[node]) for node in nodes)


def test_states_follow_the_text_whatever_happens() -> None:
    """A thousand things in a row: trees, chains, several sequences, branches, going back, passes that are dropped."""
    world = Texts(n_states=24)
    world.create()
    for _ in range(1000):
        choice, known = world.draw.random(), list(world.texts)
        sequence = int(world.draw.choice(known))
        room = N_CONTEXT - len(world.texts[sequence])
        if choice < 0.06 and len(known) < 5:
            world.create()
        elif choice < 0.12 and len(known) < 5:
            world.branch(sequence)
        elif choice < 0.18 and len(known) > 1:
            world.free(sequence)
        elif choice < 0.28:
            world.truncate(sequence, int(world.draw.integers(len(world.texts[sequence]) + 1)))
        elif choice < 0.5 and room > 0:
            world.read(sequence, int(world.draw.integers(1, min(room, 150) + 1)))
        else:
            chosen = [s for s in known if N_CONTEXT - len(world.texts[s]) > 6][:3]
            if not chosen:
                continue
            parents = {s: [-1, *(int(world.draw.integers(0, node)) for node in range(1, 6))] for s in chosen}
            world.evaluate(parents, {s: [*range(6)] for s in chosen})
            for s in chosen:
                path = [0]
                while world.draw.random() < 0.7 and path[-1] in parents[s]:
                    path.append(int(world.draw.choice([n for n in range(6) if parents[s][n] == path[-1]])))
                if world.draw.random() < 0.9:
                    world.keep(s, path)
                else:
                    world.truncate(s, len(world.texts[s]))
    for sequence in list(world.texts):
        world.free(sequence)
    assert world.cache.states is not None
    assert world.cache.states.slots.n_available == 24


def test_going_back_reaches_the_newest_checkpoint() -> None:
    world = Texts(n_states=8)
    sequence = world.create()
    world.read(sequence, 5 * PAGE + 10)
    for n_back in (1, 30, 100, 300):
        twin = world.branch(sequence)
        n_wanted = 5 * PAGE + 10 - n_back
        assert n_wanted - world.truncate(twin, n_wanted) < PAGE
        world.read(twin, 3)
        world.free(twin)
    assert world.truncate(sequence, PAGE - 1) == 0


def test_drafts_that_cross_a_page_leave_its_checkpoint() -> None:
    world = Texts(n_states=8)
    sequence = world.create()
    world.read(sequence, PAGE - 2)
    world.evaluate({sequence: [-1, 0, 1, 2]}, {sequence: [0, 1, 2, 3]})
    world.keep(sequence, [0, 1, 2, 3])
    assert world.truncate(sequence, PAGE + 1) == PAGE
    world.read(sequence, 5)


def test_old_checkpoints_make_room_and_states_do_not() -> None:
    world = Texts(n_states=4)
    first = world.create()
    for _ in range(6):
        world.read(first, PAGE)
    assert world.cache.states is not None
    assert 1 <= len(world.cache.states.checkpoints(world.cache.pages(first).tolist())) <= 4
    others = [world.create() for _ in range(3)]
    for other in others[:2]:
        world.read(other, 5)
    with pytest.raises(DoesNotFit, match="states of 2 more sequences do not fit: of 4 places 1 are free"):
        world.evaluate({s: [-1] for s in (first, others[2])}, {s: [0] for s in (first, others[2])})
    world.free(others[0])
    world.evaluate({s: [-1] for s in (first, others[2])}, {s: [0] for s in (first, others[2])})
    assert len(world.texts[first]) == 6 * PAGE


def test_a_state_cannot_be_cut_back_within_a_pass() -> None:
    world = Texts(n_states=8)
    sequence = world.create()
    world.evaluate({sequence: [-1, 0, 1]}, {sequence: [2]})
    with pytest.raises(ValueError, match="cannot be cut back to 2 of the 3 tokens"):
        world.keep(sequence, [0, 1])
    world.keep(sequence, [0, 1, 2])


def test_tokens_of_a_sequence_must_stand_together() -> None:
    world = Texts(n_states=8)
    first, second = world.create(), world.create()
    tokens = np.zeros(3, np.int32)
    sequences, positions = np.array([first, second, first], np.int32), np.array([0, 0, 1], np.int32)
    batch = Batch(tokens, sequences, positions, np.array([-1, -1, 0], np.int32), np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="must follow one another"):
        world.cache.place(batch)


def test_slots_are_counted() -> None:
    slots = StateSlots(3)
    first = slots.take()
    slots.keep(7, slots.hold(first))
    assert slots.n_available == 2
    slots.release(first)
    assert slots.n_available == 3
    slots.drop(7)
    assert len({slots.take() for _ in range(3)}) == 3
    with pytest.raises(DoesNotFit):
        slots.check(1)
