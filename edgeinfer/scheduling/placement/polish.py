"""The last step of planning a small model: local changes to a placement, each accepted if `step_time` says it pays.

In: a plan. Out: one that no such change improves: another home or attention device for a stage, with its rows where
they are or all at home; a group moved to one device as a whole, or each of its matmuls to any device; some of a part's
rows moved to another device. A linear allocation of memory misses the fixed costs of lanes; these changes save them.
Knows nothing of how the plan was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product as combinations

from edgeinfer.scheduling.cost.work import StageShape
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask, timed_plan
from edgeinfer.scheduling.placement.placement import Held, Placement, RowRange, StagePlacement
from edgeinfer.scheduling.placement.step_time import product_groups

BETTER = 1 - 1e-4
"""Factor on the seconds above which a change is no improvement."""
MOST_LOOKS = 2000
MOST_KINDS = 27
"""Placements tried for the matmuls of a group."""


def polished(task: PlanningTask, plan: MachinePlan) -> MachinePlan:
    """The plan after all changes that pay, found in about `MOST_LOOKS` tries."""
    names = tuple(rates.name for rates in task.profile.devices)
    looks, improved = 0, True
    while improved and looks < MOST_LOOKS:
        improved = False
        for number, stage in enumerate(task.work.stages):
            for changed in _changes(stage.shape, plan.placement.stages[number], names):
                before = plan.placement.stages
                placement = Placement((*before[:number], changed, *before[number + 1 :]))
                found = timed_plan(plan.schedule, task, placement)
                looks += 1
                if found is not None and found.seconds < plan.seconds * BETTER:
                    plan, improved = found, True
    return plan


def _changes(shape: StageShape, placed: StagePlacement, names: tuple[str, ...]) -> Iterator[StagePlacement]:
    for name in names:
        yield replace(placed, home=name)
        whole = tuple((RowRange(name, 0, product.n_rows),) for product in shape.products)
        for other in names if shape.attention is not None else ():
            yield replace(placed, attention=other)
            yield replace(placed, home=name, attention=other)
            yield StagePlacement(name, whole, other)
    for first, stop in product_groups(shape):
        n_products = stop - first
        alike = len(names) ** n_products > MOST_KINDS
        for devices in combinations(names, repeat=1 if alike else n_products):
            products = zip(shape.products[first:stop], devices * n_products if alike else devices, strict=True)
            yield _with(placed, first, [(RowRange(name, 0, product.n_rows),) for product, name in products])
        for number in range(first, stop):
            for parts in _shifted(placed.products[number], names):
                yield _with(placed, number, [parts])


def _with(placed: StagePlacement, first: int, products: Sequence[tuple[RowRange, ...]]) -> StagePlacement:
    changed = (*placed.products[:first], *products, *placed.products[first + len(products) :])
    return replace(placed, products=changed)


def _shifted(parts: tuple[RowRange, ...], names: tuple[str, ...]) -> Iterator[tuple[RowRange, ...]]:
    """All, a half or an eighth of a part given to another device and held there."""
    counts = {(part.device, part.held): part.n_rows for part in parts}
    for (device, held), n_rows in counts.items():
        for name in names:
            for share in (1, 2, 8):
                if (name, "own") != (device, held) and n_rows >= share:
                    changed = dict(counts)
                    changed[device, held] -= n_rows // share
                    changed[name, "own"] = changed.get((name, "own"), 0) + n_rows // share
                    yield _laid_out(changed)


def _laid_out(counts: dict[tuple[str, Held], int]) -> tuple[RowRange, ...]:
    parts, start = [], 0
    for (device, held), n_rows in counts.items():
        if n_rows:
            parts.append(RowRange(device, start, start + n_rows, held))
            start += n_rows
    return tuple(parts)
