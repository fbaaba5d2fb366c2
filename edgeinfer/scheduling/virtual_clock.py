"""A virtual clock: tasks with seconds and dependencies on resources that do one thing at a time.

In: tasks, each after tasks that were submitted before it. Out: when each starts and ends. A resource works in the order
of submission, as a device's queue does. A task that `yields` (a copy over a link, a read of a disk, both split into
small pieces) may begin while earlier ones still wait for their dependencies, and makes room for them: it never delays a
task that was submitted before it. So times are known as soon as a task is submitted. Knows nothing of models.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockTask:
    """Work of `seconds` on a resource. `after`: numbers of tasks that must have ended `latency_s` before."""

    name: str
    resource: str
    seconds: float
    after: tuple[int, ...] = ()
    latency_s: float = 0.0
    yields: bool = False


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """When a task began and ended."""

    task: ClockTask
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SimulatedTimeline:
    """Spans of all tasks in the order of submission."""

    spans: tuple[TaskSpan, ...]

    @property
    def makespan(self) -> float:
        """Seconds until everything has ended."""
        return max((span.end for span in self.spans), default=0.0)

    def busy_s(self, resource: str) -> float:
        """Seconds in which a resource works."""
        return sum(span.task.seconds for span in self.spans if span.task.resource == resource)

    def busy_share(self, resource: str) -> float:
        """Share of the time in which a resource works."""
        return self.busy_s(resource) / self.makespan if self.makespan > 0 else 0.0

    @property
    def resources(self) -> tuple[str, ...]:
        """All resources that had work, by name."""
        return tuple(sorted({span.task.resource for span in self.spans}))


class Resource:
    """A resource that does one thing at a time. Its busy intervals are sorted, and adjacent ones are merged."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._last = 0.0

    def take(self, ready: float, seconds: float, yields: bool) -> tuple[float, float]:
        """The start and the end of work that can begin at `ready`."""
        if not yields:
            ready = max(ready, self._last)
        pieces = self._free(ready, seconds)
        for start, end in pieces:
            self._occupy(start, end)
        begin, finish = (pieces[0][0], pieces[-1][1]) if pieces else (ready, ready)
        self._last = max(self._last, finish) if not yields else self._last
        return begin, finish

    def _free(self, ready: float, seconds: float) -> list[tuple[float, float]]:
        """The first free intervals from `ready` on that are `seconds` long together."""
        pieces: list[tuple[float, float]] = []
        number = bisect_right(self._ends, ready)
        now = ready
        while seconds > 0:
            until = self._starts[number] if number < len(self._starts) else float("inf")
            if now + seconds <= until:
                return [*pieces, (now, now + seconds)]
            if until > now:
                pieces.append((now, until))
                seconds -= until - now
            now = max(now, self._ends[number])
            number += 1
        return pieces

    def _occupy(self, start: float, end: float) -> None:
        number = bisect_right(self._starts, start)
        if number > 0 and self._ends[number - 1] >= start:
            number -= 1
            self._ends[number] = end
        else:
            self._starts.insert(number, start)
            self._ends.insert(number, end)
        if number + 1 < len(self._starts) and self._starts[number + 1] <= end:
            self._ends[number] = self._ends[number + 1]
            del self._starts[number + 1], self._ends[number + 1]


class Clock:
    """Submits tasks and waits for them. `now`: the time of the caller, which only waiting advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self._spans: list[TaskSpan] = []
        self._resources: dict[str, Resource] = {}

    def submit(self, task: ClockTask) -> int:
        """Submit a task; returns its number. Raises ValueError for one that could never start."""
        if not task.seconds >= 0 or not task.latency_s >= 0 or task.seconds == float("inf"):
            raise ValueError(f"task {task.name!r} cannot take {task.seconds} s after {task.latency_s} s")
        if any(not 0 <= number < len(self._spans) for number in task.after):
            raise ValueError(f"task {task.name!r} can only be after tasks that were submitted before it")
        ended = max((self._spans[number].end for number in task.after), default=0.0)
        ready = max(self.now, ended) + task.latency_s
        resource = self._resources.setdefault(task.resource, Resource())
        self._spans.append(TaskSpan(task, *resource.take(ready, task.seconds, task.yields)))
        return len(self._spans) - 1

    def wait(self, numbers: Iterable[int]) -> float:
        """Advance to the end of these tasks."""
        self.now = max([self.now, *(self._spans[number].end for number in numbers)])
        return self.now

    @property
    def n_tasks(self) -> int:
        """Number of tasks submitted."""
        return len(self._spans)

    def span(self, number: int) -> TaskSpan:
        """When the task of that number begins and ends."""
        return self._spans[number]

    @property
    def timeline(self) -> SimulatedTimeline:
        """Everything submitted so far."""
        return SimulatedTimeline(tuple(self._spans))


def run(tasks: Sequence[ClockTask]) -> SimulatedTimeline:
    """The timeline of a list of tasks, all submitted at time 0."""
    clock = Clock()
    for task in tasks:
        clock.submit(task)
    return clock.timeline
