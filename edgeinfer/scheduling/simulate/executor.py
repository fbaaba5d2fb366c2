"""Passes on a virtual clock: submitted and awaited as on devices, without hardware.

In: placements and passes. Out: the seconds of each pass and how long each device was busy, as a real executor would
report them. `slowness` makes devices slower than their profile, as another program on them would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.scheduling.simulate.clock import Clock, SimulatedTimeline
from edgeinfer.scheduling.simulate.lowering import AHEAD_BYTES, Ends, SimulatedPasses


@dataclass(frozen=True, slots=True)
class SimulatedTicket:
    """A submitted pass."""

    number: int


@dataclass(frozen=True, slots=True)
class PassReport:
    """A finished pass: its seconds, and the seconds each device, link and disk spent on what.

    `spent_s` by resource and name of the task: products, attention, others, pass; message, weights; read.
    """

    seconds: float
    spent_s: Mapping[tuple[str, str], float]

    def busy_s(self, resource: str) -> float:
        """Seconds in which a resource worked."""
        return sum(seconds for (name, _), seconds in self.spent_s.items() if name == resource)


@dataclass(frozen=True, slots=True)
class _Submitted:
    first: int
    stop: int
    ends: Ends


class VirtualExecutor:
    """Passes on a virtual clock, one after another."""

    def __init__(
        self,
        profile: Profile,
        work: ModelWork,
        kv: str = "f16",
        ahead_bytes: float = AHEAD_BYTES,
        slowness: Mapping[str, float] | None = None,
    ) -> None:
        self._clock = Clock()
        self._lowering = SimulatedPasses(self._clock, profile, work, ahead_bytes, slowness)
        self._kv = kv
        self._submitted: dict[int, _Submitted] = {}
        self._n_passes = 0
        self._ended = 0.0

    def submit(self, placement: Placement, step: Pass) -> SimulatedTicket:
        """Begin a pass when the previous one has ended."""
        first = self._clock.n_tasks
        ends = self._lowering.submit(placement, step, self._kv)
        self._n_passes += 1
        self._submitted[self._n_passes] = _Submitted(first, self._clock.n_tasks, ends)
        return SimulatedTicket(self._n_passes)

    def wait(self, ticket: SimulatedTicket) -> PassReport:
        """Advance the clock to the end of a pass; its seconds count from the end of the pass awaited before it.

        Raises KeyError for a pass that was awaited before.
        """
        submitted = self._submitted.pop(ticket.number)
        began, self._ended = self._ended, self._clock.wait(submitted.ends)
        spent: dict[tuple[str, str], float] = {}
        for number in range(submitted.first, submitted.stop):
            task = self._clock.span(number).task
            key = (task.resource, task.name)
            spent[key] = spent.get(key, 0.0) + task.seconds
        return PassReport(self._ended - began, spent)

    @property
    def seconds(self) -> float:
        """The current time of the virtual clock."""
        return self._clock.now

    @property
    def timeline(self) -> SimulatedTimeline:
        """Every task of every pass so far."""
        return self._clock.timeline


def pass_seconds(
    profile: Profile,
    work: ModelWork,
    placement: Placement,
    step: Pass,
    kv: str = "f16",
    n_passes: int = 4,
    ahead_bytes: float = AHEAD_BYTES,
) -> float:
    """Seconds of one pass among equal ones, without the first: later ones show the gain of streaming ahead."""
    executor = VirtualExecutor(profile, work, kv, ahead_bytes)
    tickets = [executor.submit(placement, step) for _ in range(max(2, n_passes))]
    reports = [executor.wait(ticket) for ticket in tickets]
    return sum(report.seconds for report in reports[1:]) / (len(reports) - 1)
