"""A planning task on a machine, and its plan, for decode and for prefill: a placement with its time and memory.

In: a machine, a model, a kind of pass, KV caches, budgets; a placement. Out: a `MachinePlan`, if it keeps within the
budgets; for passes of many tokens, the placement for decoding with a share of the rows that the CPU computes streamed
to an accelerator, by predicted seconds: every weight and KV cache stays where it is held. Allocates no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import CPU, Profile
from edgeinfer.scheduling.placement.budgets import Budgets, Caching, Usage, fits, usage_of
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement, granule
from edgeinfer.scheduling.placement.step_time import PassTime, attention_device, step_time

SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)
"""Shares of the rows in the machine's memory that are tried for streaming."""


@dataclass(frozen=True, slots=True)
class PlanningTask:
    """The task: passes like `step` of a model on a machine, with KV caches of a size within budgets."""

    profile: Profile
    work: ModelWork
    step: Pass
    caching: Caching
    budgets: Budgets


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """A placement with the seconds of a pass and the bytes it takes; `schedule` names how it was made."""

    schedule: str
    placement: Placement
    time: PassTime
    usage: Usage

    @property
    def seconds(self) -> float:
        return self.time.seconds


def decode_step(caching: Caching, n_cached: int | None = None) -> Pass:
    """One token of each sequence, with this many cached ones (None: half of the context)."""
    depth = caching.n_context // 2 if n_cached is None else n_cached
    return Pass(1, depth, 1, caching.n_sequences)


def timed_plan(schedule: str, task: PlanningTask, placement: Placement) -> MachinePlan | None:
    """The plan of a placement; None if it exceeds a budget."""
    usage = usage_of(task.work, placement, task.caching)
    if not fits(usage, task.budgets):
        return None
    time = step_time(task.profile, task.work, placement, task.step, task.caching.kv)
    return MachinePlan(schedule, placement, time, usage)


def prefill_placement(task: PlanningTask, decode: Placement, step: Pass) -> Placement:
    """The best predicted placement for a pass like `step`; that of decoding itself if nothing is better."""
    best, least_s = decode, step_time(task.profile, task.work, decode, step, task.caching.kv).seconds
    for placement in _candidates(task, decode):
        seconds = step_time(task.profile, task.work, placement, step, task.caching.kv).seconds
        if seconds < least_s:
            best, least_s = placement, seconds
    return best


def _candidates(task: PlanningTask, decode: Placement) -> Iterator[Placement]:
    for target in (rates.name for rates in task.profile.accelerators if rates.link is not None):
        for share in SHARES:
            for moves_home in (False, True):
                known: dict[int, StagePlacement] = {}
                for stage in decode.stages:
                    if id(stage) not in known:
                        known[id(stage)] = _streamed(stage, target, share, moves_home)
                yield Placement(tuple(known[id(stage)] for stage in decode.stages))


def _streamed(stage: StagePlacement, target: str, share: float, moves_home: bool) -> StagePlacement:
    """A stage with a share of its rows in the machine's memory streamed to a device, which may become its home."""
    products = tuple(_split(parts, target, share) for parts in stage.products)
    home = target if moves_home and stage.home == CPU else stage.home
    return replace(stage, home=home, products=products, attention=attention_device(stage))


def _split(parts: tuple[RowRange, ...], target: str, share: float) -> tuple[RowRange, ...]:
    """Split the CPU's own rows in two, with the latter part streamed."""
    n_rows = max(part.stop for part in parts)
    unit = granule(n_rows)
    found: list[RowRange] = []
    for part in parts:
        if part.device != CPU or part.held != "own":
            found.append(part)
            continue
        n_streamed = min(part.n_rows, round(part.n_rows * share / unit) * unit)
        cut = part.stop - n_streamed
        found += [replace(part, stop=cut)] if cut > part.start else []
        found += [RowRange(target, cut, part.stop, "streamed")] if n_streamed else []
    return tuple(found)
