"""Passes over batches of several sequences: all of them in one, or as an evaluator runs them that lets some wait.

In: batches, each of one sequence. Out: what became of those that are done. Chooses nothing and knows no answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgeinfer.engine.capabilities import Overlapping
from edgeinfer.engine.evaluators import SequenceEvaluator
from edgeinfer.graph.step import Batch, Floats, joined_axes, joined_rows


@dataclass(frozen=True, slots=True)
class Given:
    """What a sequence's batch gave: float32[O, V] of its outputs, valid until the next pass, and their peaks if known.

    `batch`: what was evaluated, in which the sequence's own tokens begin at `first`.
    """

    logits: Floats
    peaks: Floats | None
    batch: Batch
    first: int


class Passes(Protocol):
    """Who runs passes."""

    def run(self, batches: Sequence[Batch]) -> Mapping[int, Given]:
        """Begin these and make one pass; what is done, by sequence. Raises as evaluators do."""
        ...


class JoinedPasses:
    """All batches in one pass of an evaluator."""

    def __init__(self, executor: SequenceEvaluator) -> None:
        self._executor = executor

    def run(self, batches: Sequence[Batch]) -> Mapping[int, Given]:
        """Evaluate them as one batch. Raises DoesNotFit and others before anything is kept."""
        joined = join(batches)
        logits, peaks = self._executor.evaluate(joined), self._executor.peaks
        given, first, row = {}, 0, 0
        for batch in batches:
            stop = row + len(batch.outputs)
            own = None if peaks is None else peaks[row:stop]
            given[int(batch.sequences[0])] = Given(logits[row:stop], own, joined, first)
            first, row = first + len(batch.tokens), stop
        return given


class AdvancingPasses:
    """Passes of an evaluator that need not wait for all sequences."""

    def __init__(self, executor: Overlapping) -> None:
        self._executor = executor
        self._batches: dict[int, Batch] = {}

    def run(self, batches: Sequence[Batch]) -> Mapping[int, Given]:
        """Begin these and make a pass over all that is under way."""
        found = self._executor.advance(batches)
        self._batches |= {int(batch.sequences[0]): batch for batch in batches}
        return {sequence: Given(logits, None, self._batches.pop(sequence), 0) for sequence, logits in found.items()}


def passes_of(executor: SequenceEvaluator) -> Passes:
    """How an evaluator runs passes over several sequences."""
    overlapping = executor.capabilities.overlapping
    return JoinedPasses(executor) if overlapping is None else AdvancingPasses(overlapping)


def join(batches: Sequence[Batch]) -> Batch:
    """One batch of several sequences' own, one after the other."""
    if len(batches) == 1:
        return batches[0]
    firsts = np.cumsum([0, *(len(batch.tokens) for batch in batches)], dtype=np.int32)
    places = list(zip(batches, firsts, strict=False))
    return Batch(
        tokens=np.concatenate([batch.tokens for batch in batches]),
        sequences=np.concatenate([batch.sequences for batch in batches]),
        positions=np.concatenate([batch.positions for batch in batches]),
        parents=np.concatenate([np.where(batch.parents < 0, -1, batch.parents + first) for batch, first in places]),
        outputs=np.concatenate([batch.outputs + first for batch, first in places]),
        rows=joined_rows(batches),
        axes=joined_axes(batches),
    )
