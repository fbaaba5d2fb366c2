"""The order in which one thread starts, runs and awaits tasks: starts other devices early and awaits them late.

In: tasks and their dependencies. Out: the same sequence of steps for every pass. Knows no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgeinfer.engine.shared_lane.partition import LaneTask


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """Start a task on another device, run one on the host, or await one that was started."""

    act: Literal["submit", "run", "wait"]
    task: int


def turns_of(tasks: Sequence[LaneTask], host: str) -> tuple[TaskTurn, ...]:
    """Run each host task once; start and await each other task once. Raises ValueError for cyclic dependencies."""
    pending = list(range(len(tasks)))
    running: list[int] = []
    done: set[int] = set()
    turns: list[TaskTurn] = []
    while pending or running:
        ready = [number for number in pending if tasks[number].after <= done]
        away = [number for number in ready if tasks[number].device != host]
        if away:
            turns += [TaskTurn("submit", number) for number in away]
            running += away
            pending = [number for number in pending if number not in away]
        elif ready:
            turns.append(TaskTurn("run", ready[0]))
            pending.remove(ready[0])
            done.add(ready[0])
        elif running:
            turns.append(TaskTurn("wait", running[0]))
            done.add(running.pop(0))
        else:
            raise ValueError(f"tasks {pending} wait for each other")
    return tuple(turns)
