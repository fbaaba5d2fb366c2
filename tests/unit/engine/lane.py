"""A lane and a device that compute logits from the tokens a slot memory holds, so that every slot mistake shows.

The logits of a token are a function of the whole list of tokens it attends to, found through the slots of the step.
"""

from __future__ import annotations

import zlib

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.backends.capabilities import DeviceCapabilities, LaneCapabilities
from edgeinfer.graph.step import PAGE, Step
from edgeinfer.steps import no_progress

EMPTY = -1


class SlotLane:
    """Stores the token id of each slot; `seen` maps each token of the last step to the tokens it attended to."""

    def __init__(self, n_pages: int, n_vocab: int = 64) -> None:
        self.slots = np.full(n_pages * PAGE, EMPTY, np.int32)
        self.seen: list[list[int]] = []
        self.n_vocab = n_vocab
        self.closed = False

    resident_bytes = 1234
    capabilities = LaneCapabilities()

    def run(self, step: Step) -> np.ndarray:
        batch = step.batch
        assert len(set(step.slots.tolist())) == len(step.slots)
        self.slots[step.slots] = batch.tokens
        self.seen = [self._context(step, index) for index in range(len(batch.tokens))]
        return (
            np.stack([row_logits(self.seen[o], self.n_vocab) for o in batch.outputs])
            if len(batch.outputs)
            else (np.zeros((0, self.n_vocab), np.float32))
        )

    def _context(self, step: Step, index: int) -> list[int]:
        table = step.tables[step.rows[index]]
        start = int(step.starts[index])
        cached = [int(self.slots[table[p // PAGE] * PAGE + p % PAGE]) for p in range(start)]
        path = []
        while index >= 0:
            path.append(int(self.slots[step.slots[index]]))
            index = int(step.batch.parents[index])
        assert EMPTY not in cached + path
        return cached + path[::-1]

    def copy_slots(self, sources: np.ndarray, targets: np.ndarray) -> None:
        assert not set(sources.tolist()) & set(targets.tolist())
        self.slots[targets] = self.slots[sources]

    def read_pages(self, pages: np.ndarray) -> np.ndarray:
        return self.slots.reshape(-1, PAGE)[pages].view(np.uint8).copy()

    def write_pages(self, pages: np.ndarray, contents: np.ndarray) -> None:
        self.slots.reshape(-1, PAGE)[pages] = np.ascontiguousarray(contents).view(np.int32)

    def close(self) -> None:
        self.closed = True


class TurningLane(SlotLane):
    """Moves token ids to other positions; `moves`: by how far, and how many."""

    def __init__(self, n_pages: int, n_vocab: int = 64) -> None:
        super().__init__(n_pages, n_vocab)
        self.moves: list[tuple[int, int]] = []

    @property
    def capabilities(self) -> LaneCapabilities:  # type: ignore[override]
        return LaneCapabilities(turning=self)

    def turn_slots(
        self, sources: np.ndarray, targets: np.ndarray, distance: int, n_unseen: int = 0, scale: float = 1.0
    ) -> None:
        assert not n_unseen
        self.moves.append((distance, len(sources)))
        self.copy_slots(sources, targets)


class SlotDevice:
    """Compiles anything to a SlotLane."""

    name = "slots"
    batch_invariant = True
    capabilities = DeviceCapabilities()

    def __init__(self, n_vocab: int = 64) -> None:
        self.closed = False
        self.n_vocab = n_vocab

    def compile(self, spec: object, file: object, limits: Limits, progress: object = no_progress) -> SlotLane:
        return SlotLane(limits.n_pages, self.n_vocab)

    def close(self) -> None:
        self.closed = True


def row_logits(context: list[int], n_vocab: int) -> np.ndarray:
    """Logits that depend on every token of a context, in order."""
    seed = zlib.crc32(np.array(context, np.int32).tobytes())
    return np.random.Generator(np.random.PCG64(seed)).normal(0, 3, n_vocab).astype(np.float32)
