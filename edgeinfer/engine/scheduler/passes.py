"""Passes over batches of several sequences: all of them in one, or as an evaluator runs them that lets some wait.

In: batches, each of one sequence. Out: what became of those that are done. Chooses nothing and knows no answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.run.capabilities import Overlapping
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.graph.step import Batch, Floats, join


@dataclass(frozen=True, slots=True)
class SequenceLogits:
    """What a sequence's batch gave: float32[O, V] of its outputs, valid until the next pass, and their peaks if known.

    `batch`: what was evaluated, in which the sequence's own tokens begin at `first`.
    """

    logits: Floats
    peaks: Floats | None
    batch: Batch
    first: int


class Passes(Protocol):
    """Runs passes."""

    def run(self, batches: Sequence[Batch]) -> Mapping[int, SequenceLogits]:
        """Begin these and make one pass; what is done, by sequence. Raises as evaluators do."""
        ...


class JoinedPasses:
    """All batches in one pass of an evaluator."""

    def __init__(self, executor: SequenceEvaluator) -> None:
        self._executor = executor

    def run(self, batches: Sequence[Batch]) -> Mapping[int, SequenceLogits]:
        """Evaluate them as one batch. Raises DoesNotFit and others before anything is committed."""
        joined = join(batches)
        logits, peaks = self._executor.evaluate(joined), self._executor.peaks
        given, first, row = {}, 0, 0
        for batch in batches:
            stop = row + len(batch.outputs)
            own = None if peaks is None else peaks[row:stop]
            given[int(batch.sequences[0])] = SequenceLogits(logits[row:stop], own, joined, first)
            first, row = first + len(batch.tokens), stop
        return given


class AdvancingPasses:
    """Passes of an evaluator that need not wait for all sequences."""

    def __init__(self, executor: Overlapping) -> None:
        self._executor = executor
        self._batches: dict[int, Batch] = {}

    def run(self, batches: Sequence[Batch]) -> Mapping[int, SequenceLogits]:
        """Begin these and make a pass over all that is under way."""
        found = self._executor.advance(batches)
        self._batches |= {int(batch.sequences[0]): batch for batch in batches}
        return {
            sequence: SequenceLogits(logits, None, self._batches.pop(sequence), 0) for sequence, logits in found.items()
        }


def passes_of(executor: SequenceEvaluator) -> Passes:
    """How an evaluator runs passes over several sequences."""
    overlapping = executor.capabilities.overlapping
    return JoinedPasses(executor) if overlapping is None else AdvancingPasses(overlapping)
