"""A simulated machine for tests of the balance: cores with speeds, some of them shared with another program.

In: an assignment and the tokens of a step. Out: the seconds of the step and how long each worker was busy. Workers meet
at barriers, so the last one decides; a taken core now and then stops its worker for a scheduler's slice. Random numbers
come from a seed: every run is the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from edgeinfer.scheduling.workers.balance import WHOLE, Assignment, Balance

SLICE_S = 0.004
TOKEN_S = 0.004
"""One token on one core of speed 1."""


@dataclass(slots=True)
class Machine:
    """`speeds` of the cores; `taken` ones run another program too. More than `saturating` workers help nothing.

    `bursts`: probability that a step takes 1.3 to 2 times as long, whoever runs it; one in ten of those takes 5 times.
    """

    speeds: tuple[float, ...]
    taken: set[int] = field(default_factory=set)
    noise: float = 0.02
    barrier_s: float = 0.00002
    saturating: int = 1000
    bursts: float = 0.0
    depth_s: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def step(self, assignment: Assignment, n_tokens: int, n_cached: int = 0) -> tuple[float, list[float]]:
        """Seconds of a step and of each worker."""
        workers = assignment.workers
        if not assignment.pinned:
            free = [core for core in range(len(self.speeds)) if core not in self.taken]
            workers = (max(free or workers, key=lambda core: self.speeds[core]),)
        work_s = (TOKEN_S + n_cached * self.depth_s) * (1 if n_tokens <= 4 else n_tokens / 4)
        work_s *= max(1.0, len(workers) / self.saturating)
        busy = []
        for worker, (start, stop) in zip(workers, pairwise(assignment.cuts), strict=True):
            seconds = work_s * (stop - start) / WHOLE / self.speeds[worker] * self.random.gauss(1, self.noise)
            if worker in self.taken:
                stops = seconds / SLICE_S
                seconds += SLICE_S * (int(stops) + (self.random.random() < max(0.7, stops % 1)))
            busy.append(seconds)
        times = 1.0
        if self.bursts and self.random.random() < self.bursts:
            times = 5.0 if self.random.random() < 0.1 else self.random.uniform(1.3, 2)
        return times * (max(busy) + self.barrier_s * len(workers)), [times * seconds for seconds in busy]

    def n_free(self, assignment: Assignment) -> float:
        """Cores that nobody uses while steps run with an assignment."""
        return max(0.0, len(self.speeds) - len(self.taken) - len(assignment.workers))


@dataclass(slots=True)
class Played:
    """What a balance did on a machine: sizes and seconds, step by step, and the last assignment."""

    sizes: list[int]
    seconds: list[float]
    assignments: list[Assignment]

    @property
    def last(self) -> Assignment:
        return self.assignments[-1]

    def mean_s(self, first: int = 0) -> float:
        """Mean seconds of the steps from `first` on."""
        return sum(self.seconds[first:]) / len(self.seconds[first:])


def play(machine: Machine, balance: Balance, n_steps: int, n_tokens: int = 1, looks: int = 12) -> Played:
    """Steps with a balance, which is told every `looks` steps how many cores are free (0: never)."""
    played = Played([], [], [])
    for number in range(n_steps):
        if looks and number % looks == looks - 1 and balance.wants_free_cores:
            balance.note_free_cores(machine.n_free(played.last))
        assignment = balance.assign(n_tokens, number * n_tokens)
        seconds, busy = machine.step(assignment, n_tokens, number * n_tokens)
        balance.record(seconds, busy)
        played.sizes.append(len(assignment.workers))
        played.seconds.append(seconds)
        played.assignments.append(assignment)
    return played


def fixed_s(machine: Machine, workers: tuple[int, ...], n_steps: int = 300, n_tokens: int = 1) -> float:
    """Mean seconds of a step with an equal split over some workers; one alone goes where it likes."""
    cuts = tuple(WHOLE * worker // len(workers) for worker in range(len(workers) + 1))
    assignment = Assignment(workers, cuts, len(workers) > 1)
    return sum(machine.step(assignment, n_tokens)[0] for _ in range(n_steps)) / n_steps
