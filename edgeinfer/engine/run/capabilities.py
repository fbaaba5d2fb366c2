"""What an evaluator has besides evaluating: one frozen record, None for what it lacks, and the protocols of its fields.

In and out: these. `SequenceEvaluator` has what every evaluator must have; whoever wants more reads it here, so that a
type checker sees what is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeinfer.backends.base import OpSeconds
from edgeinfer.backends.evaluator import ProgramText
from edgeinfer.backends.stopping import StopFlag
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.scheduling.batch.schedules import Schedule

if TYPE_CHECKING:
    from edgeinfer.engine.run.observed import LastStep
    from edgeinfer.engine.shared_lane.lane import SharedLane


class Interruptible(Protocol):
    """An evaluator that can break off a pass: `evaluate` then raises Interrupted."""

    def heed(self, stopped: StopFlag | None) -> None:
        """Break off passes to come as soon as this is set."""
        ...


class ModelProgram(Protocol):
    """An evaluator that knows the model by itself, without a ModelSpec."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_context_trained(self) -> int: ...

    @property
    def text(self) -> ProgramText: ...


class BufferReader(Protocol):
    """An evaluator that shows what buffers of the model hold."""

    def show(self, name: str) -> Floats:
        """The rows of a buffer after the last pass: float32[T or O, width]."""
        ...


class StepTimes(Protocol):
    """An evaluator that says what steps and ops took."""

    @property
    def last_step(self) -> LastStep | None:
        """None where there are no workers to share a step."""
        ...

    def time_ops(self, n_cached: int) -> Sequence[OpSeconds]:
        """Run a pass of one token, after about so many, and say what each op took; () where that is not measured.

        Nothing else may run meanwhile, as for `evaluate`.
        """
        ...


class Eventful(Protocol):
    """An evaluator to which things happen that its user should know."""

    def take_notices(self) -> tuple[str, ...]:
        """What has happened since this was last asked."""
        ...


@dataclass(slots=True)
class Tally:
    """Passes of a schedule so far: what they took and were predicted to take, and the tokens they made and should have.

    Part of the way through the model counts as that part of a token.
    """

    n_passes: int = 0
    seconds: float = 0.0
    predicted_s: float = 0.0
    n_tokens: float = 0.0
    predicted_tokens: float = 0.0


class Overlapping(Protocol):
    """An evaluator that has batches of several sequences under way, which need not all be waited for."""

    def create(self, n_tokens: int | None = None) -> int:
        """A new empty sequence that may grow to so many tokens; None: to the whole context."""
        ...

    def advance(self, batches: Sequence[Batch]) -> Mapping[int, Floats]:
        """Start these batches, each of one sequence that has none under way, and make a pass over what is under way.

        Logits by sequence of those whose batch is done: float32[O, V], valid until the next call; commit them before it
        (`commit`'s path has indices within the sequence's own batch).
        """
        ...

    @property
    def in_flight(self) -> frozenset[int]:
        """Sequences whose batch is under way."""
        ...

    @property
    def tallies(self) -> Mapping[Schedule, Tally]:
        """What the passes of each schedule came to."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluatorCapabilities:
    """What an evaluator has besides evaluating.

    interruptible  breaks off passes
    program        knows the model by itself
    showing        shows what buffers hold
    step_times     says what steps and ops took
    eventful       things happen to it of which its user should hear
    overlapping    batches under way that need not be waited for
    shared         the lane of several devices, where they share the model
    """

    interruptible: Interruptible | None = None
    program: ModelProgram | None = None
    showing: BufferReader | None = None
    step_times: StepTimes | None = None
    eventful: Eventful | None = None
    overlapping: Overlapping | None = None
    shared: SharedLane | None = None
