"""Which slot holds the state of which sequence at which position, for models that keep states (`graph.operands`).

In: pages, whose checkpoints are the states after their last positions, and requests for slots. Out: slots, reference
counted. A slot is written once and read by all sequences that start from it, so sequences that branch share it. When
slots run out, the oldest checkpoint is dropped for the next one. Holds no states and knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import PAGE, Batch, StateStep, Step

ZEROS = -1
"""Stands for a state of all zeros, which needs no slot."""
MOST_KEPT = 6
"""Most checkpoints that a pass writes, those of its last pages."""


@dataclass(frozen=True, slots=True)
class Advance:
    """A state to compute from another by a chain of tokens of the last pass: target = source after `nodes`."""

    source: int
    target: int
    nodes: tuple[int, ...]


class StateSlots:
    """Reference counts of `n_slots` slots."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = list(range(n_slots - 1, -1, -1))
        self._holders = [0] * n_slots
        self._checkpoints: dict[int, int] = {}  # slot by page, oldest first

    @property
    def n_available(self) -> int:
        """Free slots, plus those of checkpoints that are not the current state of any sequence."""
        return len(self._free) + sum(self._holders[slot] == 1 for slot in self._checkpoints.values())

    def check(self, n_wanted: int) -> None:
        """Raises DoesNotFit if fewer than `n_wanted` slots are available."""
        if n_wanted > self.n_available:
            raise DoesNotFit(
                f"states of {n_wanted} more sequences do not fit: of {self.n_slots} places {self.n_available} are "
                "free; close other sessions"
            )

    def take(self) -> int:
        """Take a free slot, dropping the oldest checkpoint that no sequence uses if needed. Call `check` before."""
        if not self._free:
            oldest = next(page for page, slot in self._checkpoints.items() if self._holders[slot] == 1)
            self.drop(oldest)
        slot = self._free.pop()
        self._holders[slot] = 1
        return slot

    def hold(self, slot: int) -> int:
        """Add a reference to a slot, and return the slot."""
        if slot != ZEROS:
            self._holders[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """Remove a reference to a slot; without references it is free."""
        if slot == ZEROS:
            return
        self._holders[slot] -= 1
        if not self._holders[slot]:
            self._free.append(slot)

    def keep(self, page: int, slot: int) -> None:
        """Make a slot the checkpoint of a page; the caller's reference passes to the page."""
        self.drop(page)
        self._checkpoints[page] = slot

    def drop(self, page: int) -> None:
        """Drop the checkpoint of a page."""
        slot = self._checkpoints.pop(page, ZEROS)
        self.release(slot)

    def checkpoint(self, page: int) -> int | None:
        """The slot of the state after a page, or None."""
        return self._checkpoints.get(page)


@dataclass(frozen=True, slots=True)
class Writes:
    """What a pass writes for a sequence: the state after its `settled` tokens, and (tokens, slot) of checkpoints."""

    settled: int
    slot: int
    checkpoints: tuple[tuple[int, int], ...]


class SequenceStates:
    """The current states of sequences, and those that passes write; `engine.kv.kvcache` has the sequences."""

    def __init__(self, n_slots: int) -> None:
        self.slots = StateSlots(n_slots)
        self._current: dict[int, int] = {}
        self._pending: dict[int, Writes] = {}

    def create(self, sequence: int) -> None:
        """Add an empty sequence."""
        self._current[sequence] = ZEROS

    def branch(self, sequence: int, twin: int) -> None:
        """Add a sequence with the same current state."""
        self._current[twin] = self.slots.hold(self._current[sequence])

    def forget(self, sequence: int) -> None:
        """Remove a sequence."""
        self._move(sequence, ZEROS)
        del self._current[sequence]

    def current(self, sequence: int) -> int:
        """The slot of a sequence's current state."""
        return self._current[sequence]

    def adopt(self, sequence: int) -> int:
        """Give a sequence a new slot for its current state, whose contents the caller writes. Raises DoesNotFit."""
        self.slots.check(1)
        self._move(sequence, self.slots.take())
        return self._current[sequence]

    def rewind(self, sequence: int, n_cached: int, n_wanted: int, pages: list[int]) -> int:
        """Go back to the last position up to `n_wanted` that has a state, and return it.

        `pages`: the sequence's pages.
        """
        if n_wanted == n_cached:
            return n_cached
        for n_pages in range(n_wanted // PAGE, 0, -1):
            slot = self.slots.checkpoint(pages[n_pages - 1])
            if slot is not None:
                self._move(sequence, self.slots.hold(slot))
                return n_pages * PAGE
        self._move(sequence, ZEROS)
        return 0

    def checkpoints(self, pages: list[int]) -> list[tuple[int, int]]:
        """(number of pages, slot) of the checkpoints of a sequence with these whole pages."""
        found = ((number, self.slots.checkpoint(page)) for number, page in enumerate(pages, 1))
        return [(number, slot) for number, slot in found if slot is not None]

    def place(self, step: Step) -> StateStep:
        """Assign slots for what a pass writes; each of its sequences needs at least one.

        Raises ValueError if the tokens of a sequence are not adjacent in the batch.
        """
        if len(step.rows) == 1:
            return self._place_one(step)
        rows = step.rows
        firsts = np.flatnonzero(np.diff(rows, prepend=-1)).astype(np.int32)
        if len(firsts) != len(step.tables):
            raise ValueError("the tokens of a sequence must follow one another in a batch")
        stops = [*firsts[1:].tolist(), len(rows)]
        loads: list[int] = []
        settled: list[int] = []
        saves: list[tuple[int, int, int]] = []
        for row, (first, stop) in enumerate(zip(firsts.tolist(), stops, strict=True)):
            sequence = int(step.batch.sequences[first])
            loads.append(self._current[sequence])
            settled.append(_n_settled(step.batch, first, stop))
            others = len(stops) - row - 1  # these still need a slot each
            writes = self._writes(int(step.starts[first]), settled[-1], stop - first, others)
            self._pending[sequence] = writes
            saves += [(row, n, slot) for n, slot in sorted({(writes.settled, writes.slot), *writes.checkpoints})]
        written = np.array(saves, np.int32).reshape(-1, 3)
        return StateStep(firsts, np.array(loads, np.int32), np.array(settled, np.int32), written)

    def _place_one(self, step: Step) -> StateStep:
        """`place` for a single token, which follows the cached ones: the same result without array work."""
        sequence = int(step.batch.sequences[0])
        load, writes = self._current[sequence], self._writes(int(step.starts[0]), 1, 1, 0)
        self._pending[sequence] = writes
        saves = [(0, n, slot) for n, slot in sorted({(writes.settled, writes.slot), *writes.checkpoints})]
        one = np.array([0, load, 1], np.int32)
        return StateStep(one[:1], one[1:2], one[2:], np.array(saves, np.int32))

    def discard(self, sequence: int) -> None:
        """Discard what a pass wrote for a sequence."""
        writes = self._pending.pop(sequence, None)
        if writes is not None:
            self.slots.release(writes.slot)
            for _, slot in writes.checkpoints:
                self.slots.release(slot)

    def claim(self, sequence: int, n_kept: int) -> Writes | None:
        """Take what a pass wrote for a sequence of whose tokens `n_kept` are kept; None if there was no pass.

        Raises ValueError if fewer tokens are kept than the pass treated as settled.
        """
        writes = self._pending.get(sequence)
        if writes is not None and n_kept < writes.settled:
            raise ValueError(f"a state cannot be cut back to {n_kept} of the {writes.settled} tokens it went on by")
        return self._pending.pop(sequence, None)

    def give_back(self, sequence: int, writes: Writes | None) -> None:
        """Undo `claim`: the tokens are pending again."""
        if writes is not None:
            self._pending[sequence] = writes

    def commit(
        self, sequence: int, writes: Writes | None, path: list[int], n_before: int, pages: list[int]
    ) -> tuple[Advance, ...]:
        """Move to where a path of the pass leads after `n_before` tokens; returns the states to advance.

        `pages`: the sequence's pages, already grown.
        """
        assert writes is not None
        self._move(sequence, writes.slot)
        for n_tokens, slot in writes.checkpoints:
            self.slots.keep(pages[(n_before + n_tokens) // PAGE - 1], slot)
        nodes, advances = path[writes.settled :], []
        for n_nodes in range(1, len(nodes) + 1):
            n_cached = n_before + writes.settled + n_nodes
            if n_cached % PAGE == 0 and self.slots.n_available:
                slot = self.slots.take()
                self.slots.keep(pages[n_cached // PAGE - 1], slot)
                advances.append(Advance(writes.slot, slot, tuple(nodes[:n_nodes])))
        if nodes:
            advances.append(Advance(writes.slot, writes.slot, tuple(nodes)))
        return tuple(advances)

    def _writes(self, n_before: int, n_settled: int, n_tokens: int, n_reserved: int) -> Writes:
        """Slots for a sequence of a pass whose first `n_settled` tokens are settled; leaves `n_reserved` for others."""
        slot, checkpoints = self.slots.take(), []
        last = (n_before + n_settled) // PAGE
        for page in range(last, max(n_before // PAGE, last - MOST_KEPT), -1):
            count = page * PAGE - n_before
            if count == n_settled == n_tokens:
                checkpoints.append((count, self.slots.hold(slot)))
            elif self.slots.n_available > n_reserved:
                checkpoints.append((count, self.slots.take()))
        return Writes(n_settled, slot, tuple(reversed(checkpoints)))

    def _move(self, sequence: int, slot: int) -> None:
        """Make a slot the current state of a sequence; the caller's reference passes to the sequence."""
        left, self._current[sequence] = self._current[sequence], slot
        self.slots.release(left)  # released last, so that an interrupt in between frees no slot twice


def _n_settled(batch: Batch, first: int, stop: int) -> int:
    """How many of a sequence's tokens are kept whatever the logits are: a chain up to the first token with logits."""
    place = int(np.searchsorted(batch.outputs, first))
    last = int(batch.outputs[place]) if place < len(batch.outputs) else stop - 1
    n_settled = min(last, stop - 1) - first + 1
    parents = batch.parents[first : first + n_settled]
    if parents[0] != -1 or np.any(parents[1:] != np.arange(first, first + n_settled - 1)):
        raise ValueError("tokens before the first logits of a sequence must be a chain")
    return n_settled
