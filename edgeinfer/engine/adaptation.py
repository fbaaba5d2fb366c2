"""Between a lane's workers and the balance: asks it for a crew before each step and tells it what the step took.

In: steps that are about to run, and have run, on a lane with workers. It also asks the system which cores are idle
while some workers are left out. Knows nothing of what a step computes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from edgeinfer.backends.base import Batch, Crew, Staffed
from edgeinfer.scheduling.balance import NO_LEAVE, Assignment, Balance

LOOK_S = 0.05
"""Time over which the system's count of idle time says something: it counts in hundredths of a second."""


class Adaptation:
    """Adapts the crew of a lane whose workers have these cores (None: all of the machine)."""

    def __init__(self, lane: Staffed, cores: Sequence[int] | None) -> None:
        self._lane = lane
        self._balance = Balance(lane.n_workers)
        self._assignment: Assignment | None = None
        self._crew = lane.crew
        self._cores = cores
        self._looked_s, self._idle_s = 0.0, 0.0
        self._leave, self._n_tokens = NO_LEAVE, 0
        self._n_left, self._n_quiet = 0, 0  # of the leave: steps to come, and steps done that were not recorded

    def before(self, batch: Batch) -> None:
        """Set the crew for a batch that is about to run."""
        if self._n_left and len(batch.tokens) == self._n_tokens:
            self._lane.crew = self._crew
            return
        if len(batch.tokens) != self._n_tokens:
            self._n_left, self._n_quiet, self._n_tokens = 0, 0, len(batch.tokens)
        if self._balance.wants_free_cores:
            self._look()
        assignment = self._balance.assign(len(batch.tokens), int(batch.positions[-1]))
        if assignment is not self._assignment:
            self._assignment = assignment
            self._crew = Crew(assignment.workers, assignment.cuts, assignment.pinned)
        self._lane.crew = self._crew

    def after(self) -> None:
        """Learn from the batch that has run."""
        if self._n_left and self._lane.seconds <= self._leave.longest_s:
            self._n_left -= 1
            self._n_quiet += 1
            return
        timing = self._lane.timing
        self._balance.record(timing.seconds, timing.busy, self._n_quiet)
        self._leave = self._balance.leave
        self._n_left, self._n_quiet = self._leave.n_steps, 0

    def _look(self) -> None:
        """Tell the balance how many cores were idle since the last look."""
        now = time.perf_counter()
        if (passed := now - self._looked_s) < LOOK_S:
            return
        idle_s = self._read_idle_s()
        if passed < 10 * LOOK_S:
            self._balance.note_free_cores((idle_s - self._idle_s) / passed)
        self._looked_s, self._idle_s = now, idle_s

    def _read_idle_s(self) -> float:
        """Seconds that the cores have been idle, all together."""
        times = psutil.cpu_times(percpu=True)
        cores = range(len(times)) if self._cores is None else self._cores
        return float(sum(times[core].idle for core in cores if core < len(times)))
