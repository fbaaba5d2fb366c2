"""Answers over a lane whose logits depend on every token attended to, led together and alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import SamplingSettings
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.answering import Answer
from edgeinfer.engine.scheduler.generate import Generation
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.swap import SwapSpace
from edgeinfer.engine.scheduler.ticket import Ticket
from edgeinfer.graph.step import Step
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.serving.priority import Priority
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

    def under_way(self) -> dict[Ticket, Request]:
        """Three answers, some passes after they began."""
        wanted = [request([7 + n], 20, n) for n in range(3)]
        entered = {self.ticket(each): each for each in wanted}
        for _ in range(5):
            self.scheduler.step()
        return entered

    def ticket(
        self, wanted: Request, priority: Priority = "interactive", *, shares: bool = True, driven: bool = True
    ) -> Ticket:
        """An answer that has entered."""
        answer = Answer(self.pool.reserve(), self.tokenizer, wanted, counts_energy=False)
        released = None if shares else lambda over: over.answer.cached.close()
        ticket = Ticket(answer, priority, shares_prefix=shares, is_driven=driven, released=released)
        self.scheduler.enter(ticket)
        return ticket

    def run(self, *tickets: Ticket, most: int = 5000) -> None:
        """Make passes until these are over."""
        for _ in range(most):
            if all(ticket.is_over for ticket in tickets):
                return
            self.scheduler.step()
        raise AssertionError("they never end")

    def alone(self, wanted: Request) -> Generation:
        """The same answer by itself."""
        other = Served(self.tokenizer)
        generation = Generation(other.pool.open(), self.tokenizer, wanted)
        list(generation.pieces())
        return generation

    def same(self, ticket: Ticket, wanted: Request) -> None:
        """An answer is what it is alone."""
        other = self.alone(wanted)
        assert ticket.error is None
        assert (ticket.answer.tokens, ticket.answer.text) == (other.tokens, other.text)
        assert ticket.take_all() == other.text
        assert ticket.answer.stats is not None
        assert ticket.answer.stats.finish_reason == other.stats.finish_reason
