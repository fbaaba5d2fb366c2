"""Optional capabilities of an evaluator: a frozen record of protocols, with None for those it lacks.

`SequenceEvaluator` has what every evaluator must have. Callers that need more look it up here, so that a type checker
sees what they use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeinfer.backends.base import OpSeconds
from edgeinfer.backends.evaluator import ProgramText, StopFlag
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.scheduling.batch.schedules import Schedule

if TYPE_CHECKING:
    from edgeinfer.engine.run.observed import LastStep
    from edgeinfer.engine.shared_lane.lane import SharedLane


class Interruptible(Protocol):
    """An evaluator that can interrupt a pass: `evaluate` then raises Interrupted."""

    def heed(self, stopped: StopFlag | None) -> None:
        """Interrupt later passes as soon as this flag is set."""
        ...


class ModelProgram(Protocol):
    """An evaluator that reads the model file itself, without a ModelSpec."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_context_trained(self) -> int: ...

    @property
    def text(self) -> ProgramText: ...


class BufferReader(Protocol):
    """An evaluator that can show the contents of the model's buffers."""

    def show(self, name: str) -> Floats:
        """The rows of a buffer after the last pass: float32[T or O, width]."""
        ...


class StepTimes(Protocol):
    """An evaluator that reports how long steps and ops took."""

    @property
    def last_step(self) -> LastStep | None:
        """None where no workers share a step."""
        ...

    def time_ops(self, n_cached: int) -> Sequence[OpSeconds]:
        """Run a one-token pass after about this many tokens and return the time of each op; () where not measured.

        Nothing else may run meanwhile, as for `evaluate`.
        """
        ...


class Eventful(Protocol):
    """An evaluator that has notices for its user."""

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call."""
        ...


@dataclass(slots=True)
class Tally:
    """Totals of a schedule's passes: measured and predicted seconds, tokens made and tokens predicted.

    A token that is part of the way through the model counts as that fraction.
    """

    n_passes: int = 0
    seconds: float = 0.0
    predicted_s: float = 0.0
    n_tokens: float = 0.0
    predicted_tokens: float = 0.0


class Overlapping(Protocol):
    """An evaluator that keeps batches of several sequences in flight; callers need not wait for all of them."""

    def create(self, n_tokens: int | None = None) -> int:
        """A new empty sequence that may grow to this many tokens; None: to the whole context."""
        ...

    def advance(self, batches: Sequence[Batch]) -> Mapping[int, Floats]:
        """Start these batches, one for each sequence with none in flight, then run a pass over all in-flight batches.

        Returns logits by sequence for the batches that are done: float32[O, V], valid until the next call. Commit them
        before that call (the path given to `commit` holds indices within the sequence's own batch).
        """
        ...

    @property
    def in_flight(self) -> frozenset[int]:
        """Sequences with a batch in flight."""
        ...

    @property
    def tallies(self) -> Mapping[Schedule, Tally]:
        """Totals by schedule."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluatorCapabilities:
    """Optional capabilities of an evaluator.

    interruptible  can interrupt passes
    program        reads the model file itself
    showing        shows the contents of buffers
    step_times     reports how long steps and ops took
    eventful       has notices for its user
    overlapping    keeps batches in flight that callers need not wait for
    shared         the lane over several devices, where they share the model
    """

    interruptible: Interruptible | None = None
    program: ModelProgram | None = None
    showing: BufferReader | None = None
    step_times: StepTimes | None = None
    eventful: Eventful | None = None
    overlapping: Overlapping | None = None
    shared: SharedLane | None = None
