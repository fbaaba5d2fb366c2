"""Adapts a lane's work split: asks the `Balance` for one before each step and reports how long the step took.

In: steps before and after they run on a lane with workers, and how many workers are allowed. While some workers are
left out, it also asks the system which cores are idle. Knows nothing of what a step computes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from edgeinfer.backends.base import DeviceOptions, WorkSplit
from edgeinfer.backends.capabilities import Workers
from edgeinfer.graph.step import Batch
from edgeinfer.scheduling.workers.balance import Assignment, Balance
from edgeinfer.scheduling.workers.governor import PowerPolicy

LOOK_S = 0.05
"""Shortest interval over which the system's idle time is meaningful: it counts in hundredths of a second."""


@dataclass(slots=True)
class _OnLeave:
    """Unrecorded passes of one length: how many are left, and how many ran since the last recorded one."""

    work_split: WorkSplit
    n_left: int
    longest_s: float
    n_quiet: int = 0


class Adaptation:
    """Adapts the work split of a lane opened with `options`, starting from the shares they give."""

    def __init__(self, lane: Workers, options: DeviceOptions) -> None:
        self._lane = lane
        self._balance = Balance(lane.n_workers, options.decode_shares, options.prefill_shares)
        self._assignment: Assignment | None = None
        self._work_split = lane.work_split
        self._cores = options.cores
        self._policy: PowerPolicy | None = None
        self._limits: tuple[int, tuple[int, ...]] = (lane.n_workers, ())
        self._looked_s, self._idle_s = 0.0, 0.0
        self._leaves: dict[int, _OnLeave] = {}  # by tokens of a pass
        self._batch: Batch | None = None
        self._current: _OnLeave | None = None

    def limit(self, policy: PowerPolicy) -> None:
        """Apply a policy from the next step on. Returns at once if the policy is unchanged."""
        if policy is self._policy:
            return
        self._policy = policy
        if (limits := (policy.most_workers, policy.ranks)) != self._limits:
            self._limits = limits
            self._balance.limit(*limits)
            self._leaves.clear()

    def before(self, batch: Batch) -> None:
        """Set the work split for a batch that is about to run."""
        self._batch, self._current = batch, self._leaves.get(len(batch.tokens))
        if self._current is not None and self._current.n_left:
            self._lane.work_split = self._current.work_split
            return
        self._assign(batch)
        self._lane.work_split = self._work_split

    def after(self) -> None:
        """Learn from the batch that has just run."""
        current, batch = self._current, self._batch
        assert batch is not None
        n_before = 0
        if current is not None:
            n_before = current.n_quiet
            if current.n_left and self._lane.seconds <= current.longest_s:
                current.n_left -= 1
                current.n_quiet += 1
                return
            if current.n_left:
                self._assign(batch)
                if self._work_split != current.work_split:  # another length changed the split meanwhile
                    self._leaves.clear()
                    return
        timing = self._lane.timing
        self._balance.record(timing.seconds, timing.busy, n_before)
        leave = self._balance.leave
        if leave.n_steps:
            self._leaves[len(batch.tokens)] = _OnLeave(self._work_split, leave.n_steps, leave.longest_s)
        else:
            self._leaves.clear()

    def _assign(self, batch: Batch) -> None:
        if self._balance.wants_free_cores:
            self._look()
        assignment = self._balance.assign(len(batch.tokens), int(batch.positions[-1]))
        if assignment is not self._assignment:
            self._assignment = assignment
            self._work_split = WorkSplit(assignment.workers, assignment.cuts, assignment.pinned)

    def _look(self) -> None:
        """Report to the balance how many cores have been idle since the last call."""
        now = time.perf_counter()
        if (passed := now - self._looked_s) < LOOK_S:
            return
        idle_s = self._read_idle_s()
        if passed < 10 * LOOK_S:
            self._balance.note_free_cores((idle_s - self._idle_s) / passed)
        self._looked_s, self._idle_s = now, idle_s

    def _read_idle_s(self) -> float:
        """Seconds the cores have been idle, summed over all of them."""
        times = psutil.cpu_times(percpu=True)
        cores = range(len(times)) if self._cores is None else self._cores
        return float(sum(times[core].idle for core in cores if core < len(times)))
