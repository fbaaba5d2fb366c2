"""Answers over a lane whose logits depend on every token attended to, led together and alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.requests.drafting import Speculator
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.retained import SwapSpace
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.graph.step import Step
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.allotment import Priority
from tests.unit.engine.lane import SlotDevice, SlotLane

N_VOCAB = 268
NO_EOG = dict.fromkeys((0, 2), -np.inf)


class CountingLane(SlotLane):
    """Notes how many tokens each pass had."""

    def __init__(self, n_pages: int) -> None:
        super().__init__(n_pages, N_VOCAB)
        self.sizes: list[int] = []

    def run(self, step: Step) -> np.ndarray:
        self.sizes.append(len(step.batch.tokens))
        return super().run(step)


def request(prompt: Sequence[int], n: int | None, seed: int = 1, **options: object) -> Request:
    sampling = SamplingSettings(**{"seed": seed, "temperature": 0.9, "logit_bias": NO_EOG, **options})
    return Request(tuple(prompt), sampling, n)


def stream_of(
    cached: CachedSequence,
    tokenizer: Tokenizer,
    wanted: Request,
    speculator: Speculator | None = None,
    *,
    driver: StepDriver | None = None,
    shares_prefix: bool = False,
) -> TextStream:
    """An answer as a caller has it; without a driver its scheduler has no others."""
    sequence = ScheduledSequence(cached, tokenizer, wanted, speculator, shares_prefix=shares_prefix)
    return TextStream(sequence, driver or StepDriver(Scheduler(cached.pool)))


class Served:
    """A scheduler over such a lane."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        n_pages: int = 24,
        n_context: int = 256,
        most_active: int | None = None,
        swap: SwapSpace | None = None,
    ) -> None:
        self.tokenizer, self.n_pages = tokenizer, n_pages
        self.lane = CountingLane(n_pages)
        self.pool = Pool(Executor(SlotDevice(N_VOCAB), self.lane, Limits(n_context, n_pages, 32, 8), "slots"))
        self.scheduler = Scheduler(self.pool, most_active, swap)
        self.driver = StepDriver(self.scheduler)

    def under_way(self) -> dict[ScheduledSequence, Request]:
        """Three answers, some passes after they began."""
        wanted = [request([7 + n], 20, n) for n in range(3)]
        entered = {self.sequence(each): each for each in wanted}
        for _ in range(5):
            self.scheduler.step()
        return entered

    def sequence(
        self, wanted: Request, priority: Priority = "interactive", *, shares: bool = True, driven: bool = True
    ) -> ScheduledSequence:
        """An answer that has entered."""
        own = self.pool.reserve(), self.tokenizer, wanted
        sequence = ScheduledSequence(*own, priority=priority, shares_prefix=shares, counts_energy=False)
        sequence.is_driven, sequence.released = driven, None if shares else lambda over: over.cached.close()
        self.scheduler.enter(sequence)
        return sequence

    def run(self, *sequences: ScheduledSequence, most: int = 5000) -> None:
        """Make passes until these are over."""
        for _ in range(most):
            if all(sequence.is_over for sequence in sequences):
                return
            self.scheduler.step()
        raise AssertionError("they never end")

    def alone(self, wanted: Request) -> TextStream:
        """The same answer by itself."""
        other = Served(self.tokenizer)
        generation = stream_of(other.pool.open(), self.tokenizer, wanted)
        list(generation)
        return generation

    def same(self, sequence: ScheduledSequence, wanted: Request) -> None:
        """An answer is what it is alone."""
        other = self.alone(wanted)
        assert sequence.error is None
        assert (sequence.tokens, sequence.output.text()) == (other.tokens, other.text)
        assert "".join(sequence.output.take_all()) == other.text
        assert sequence.stats is not None
        assert sequence.stats.finish_reason == other.stats.finish_reason
