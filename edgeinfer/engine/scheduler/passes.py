"""Passes over batches of several sequences: all in one pass, or as an evaluator schedules them if it may delay some.

In: batches, each of one sequence. Out: the logits of those that are done. Makes no choices and knows no answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgeinfer.engine.requests.drafting import Draft
from edgeinfer.engine.run.evaluators import Overlapping, SequenceEvaluator
from edgeinfer.graph.step import Batch, Floats, join


@dataclass(frozen=True, slots=True)
class SequenceLogits:
    """Logits of a sequence's batch: float32[O, V] of its outputs, valid until the next pass, and peaks if known.

    `batch`: what was evaluated; the sequence's own tokens begin at `first` in it. `is_alone`: no other sequence took
    part in any pass over it.
    """

    logits: Floats
    peaks: Floats | None
    batch: Batch
    first: int
    is_alone: bool


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A batch to evaluate for a sequence. `started`: when work on it began; `ready`: when it was built.

    `draft`: the draft it was made of; None for a chain, which is accepted whole.
    """

    batch: Batch
    draft: Draft | None
    started: float
    ready: float = field(default_factory=time.perf_counter)


class Passes(Protocol):
    """Runs passes."""

    @property
    def under_way(self) -> frozenset[int]:
        """Sequences whose batches are under way between passes."""
        ...

    def run(self, batches: Sequence[Batch]) -> Mapping[int, SequenceLogits]:
        """Submit these batches and run one pass; returns what is done, by sequence. Raises as evaluators do."""
        ...


class JoinedPasses:
    """Runs all batches in one pass of an evaluator."""

    def __init__(self, executor: SequenceEvaluator) -> None:
        self._executor = executor

    @property
    def under_way(self) -> frozenset[int]:
        """None: a pass waits for all."""
        return frozenset()

    def run(self, batches: Sequence[Batch]) -> Mapping[int, SequenceLogits]:
        """Evaluate the batches as one. Raises DoesNotFit and others before anything is committed."""
        joined = join(batches)
        logits, peaks = self._executor.evaluate(joined), self._executor.peaks
        given, first, row = {}, 0, 0
        for batch in batches:
            stop = row + len(batch.outputs)
            own = None if peaks is None else peaks[row:stop]
            given[int(batch.sequences[0])] = SequenceLogits(logits[row:stop], own, joined, first, len(batches) == 1)
            first, row = first + len(batch.tokens), stop
        return given


class AdvancingPasses:
    """Passes of an evaluator that does not need to wait for all sequences."""

    def __init__(self, executor: Overlapping) -> None:
        self._executor = executor
        self._batches: dict[int, Batch] = {}
        self._shared: set[int] = set()

    @property
    def under_way(self) -> frozenset[int]:
        """Those that were submitted and are not done."""
        return frozenset(self._batches)

    def run(self, batches: Sequence[Batch]) -> Mapping[int, SequenceLogits]:
        """Submit these batches and run a pass over all that are under way."""
        found = self._executor.advance(batches)
        self._batches |= {int(batch.sequences[0]): batch for batch in batches}
        if len(self._batches) > 1:
            self._shared |= self._batches.keys()
        given = {
            sequence: SequenceLogits(logits, None, self._batches.pop(sequence), 0, sequence not in self._shared)
            for sequence, logits in found.items()
        }
        self._shared -= given.keys()
        return given


def passes_of(executor: SequenceEvaluator) -> Passes:
    """The way an evaluator runs passes over several sequences."""
    overlapping = executor.capabilities.overlapping
    return JoinedPasses(executor) if overlapping is None else AdvancingPasses(overlapping)
