"""The planner: places a model's stages on a machine by predicted seconds.

In: a `PlanningTask` (machine, model, kind of pass, KV caches, budgets). Out: a `MachinePlan`: the placement, its
predicted time and memory. Searches over homes and attention devices: starts from whole layers on the fastest
accelerators as far as memory goes, evenly spread layers, and a single home, then moves borders and changes runs of
stages. For each candidate, memory is allocated by time saved per byte (`allocation`), in closed form for equal stages
together, so that many layers cost no more than few. The best candidates are placed row by row and timed by `step_time`,
which decides. Deterministic.

Plans of small models are then polished, because a linear allocation of memory misses the fixed costs of lanes: another
home or attention device for a stage, with its rows where they are or all at home; a group moved to one device as a
whole, or each of its matmuls to any device; some of a part's rows moved to another device. Each change is accepted if
`step_time` says it pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product as combinations

from edgeinfer.scheduling.cost.work import ModelWork, StageShape
from edgeinfer.scheduling.placement.allocation import Allocation, Allocator, Places
from edgeinfer.scheduling.placement.budgets import Budgets, refusal
from edgeinfer.scheduling.placement.candidates import layered, moved, starts
from edgeinfer.scheduling.placement.fractions import Allowed, Fractions
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask, decode_step, timed_plan
from edgeinfer.scheduling.placement.placement import Held, Placement, RowRange, StagePlacement, granule
from edgeinfer.scheduling.placement.rows import Cut, placement_of
from edgeinfer.scheduling.placement.step_time import PassCosts, bytes_read, product_groups

__all__ = ["MachinePlan", "PlanningTask", "decode_step", "even_footprints", "plan", "searched", "timed_plan"]

ROUNDS = 3
"""How often costs are recomputed for the bytes that devices read in the best placement so far."""
N_PLACED = 2
"""Allocations that are placed row by row in each round."""
SMALL_STAGES = 6
SMALL_LOOKS, LARGE_LOOKS = 3000, 24
"""Candidates tried in a round, for models of few and of many stages."""
WORTH = 0.01
"""Share of a pass that justifies a search of its own,"""
LAUNCHES_WORTH = 0.05
"""and the same for launches, of which only some can be saved."""
FLASH_ROUNDS = 2
"""Searches that take account of what the previous one left on flash."""
BETTER = 1 - 1e-4
"""Factor on the seconds above which a change is no improvement."""
MOST_LOOKS = 2000
MOST_KINDS = 27
"""Placements tried for the matmuls of a group."""


def plan(task: PlanningTask) -> MachinePlan:
    """The best plan found. Raises DoesNotFit, saying how many bytes are missing and what would fit."""
    best: MachinePlan | None = None
    footprints, devices = even_footprints(task), task.profile.devices
    for _ in range(ROUNDS):
        found = _round(task, footprints)
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
        elif best is not None:
            break
        if best is None:
            raise refusal(task.work, task.budgets, task.caching, task.profile.disk is not None)
        after = bytes_read(task.work, best.placement, task.step, task.caching.kv)
        if all(rates.read(after.get(rates.name, 0.0)) == rates.read(footprints[rates.name]) for rates in devices):
            break
        footprints = {rates.name: after.get(rates.name, footprints[rates.name]) for rates in devices}
    assert best is not None
    return polished(task, best) if len(task.work.stages) <= SMALL_STAGES else best


def even_footprints(task: PlanningTask) -> dict[str, float]:
    """Bytes that devices would read if each had as much of the model as its memory holds."""
    total = task.work.weight_bytes
    vram = task.budgets.vram_bytes
    return {rates.name: min(total, vram.get(rates.name, total)) for rates in task.profile.devices}


def _round(task: PlanningTask, footprints: dict[str, float]) -> MachinePlan | None:
    """The best plan with costs for these footprints; for large models only the best variant is searched further."""
    costs = PassCosts(task.profile, task.step, task.caching.kv, footprints)
    known: dict[Allowed, Fractions] = {}
    small = len(task.work.stages) <= SMALL_STAGES
    best = searched("auto", task, costs, Allowed(), None, SMALL_LOOKS if small else 0, known)
    manner = Allowed()
    for allowed in _other_manners(task, costs, best):
        few = None if small else list(layered(task.work, known[Allowed()], task.budgets, task.caching))
        found = searched("auto", task, costs, allowed, few, SMALL_LOOKS if small else 0, known)
        if found is not None and (best is None or found.seconds < best.seconds):
            best, manner = found, allowed
    if small or best is None:
        return best
    further = searched("auto", task, costs, manner, None, LARGE_LOOKS, known)
    return best if further is None or best.seconds <= further.seconds else further


def _other_manners(task: PlanningTask, costs: PassCosts, best: MachinePlan | None) -> list[Allowed]:
    """Other variants of lanes that may be faster: without lanes of some devices, or with fewer launches.

    A lane never makes a group longer, but each device that takes part adds a fixed cost to every pass, and so do
    launches of accelerators that have rows of all matmuls of a group. Variants that save too little of the pass are
    left out.
    """
    devices = task.profile.devices
    if len(devices) == 1:
        return []
    worth_s = 0.0 if best is None else best.seconds
    numbers = tuple(n for n, rates in enumerate(devices) if costs.fixed_s((rates.name,)) > WORTH * worth_s)
    manners = [Allowed(across=False)] if len(devices) > 2 else []
    manners += [Allowed(without=(number,)) for number in numbers]
    manners += [Allowed(without=numbers)] if len(numbers) > 1 else []
    n_shared = sum(len(stage.shape.products) - len(product_groups(stage.shape)) for stage in task.work.stages)
    if best is not None and best.usage.flash_bytes:
        manners.append(Allowed(flash_last=True))
    if n_shared * max(rates.op_s for rates in devices) > LAUNCHES_WORTH * worth_s:
        manners.append(Allowed(filled=True))
    return manners


def searched(
    schedule: str,
    task: PlanningTask,
    costs: PassCosts,
    allowed: Allowed,
    fixed: Iterable[tuple[Places, ...]] | None,
    looks: int = LARGE_LOOKS,
    known: dict[Allowed, Fractions] | None = None,
) -> MachinePlan | None:
    """The best plan among `fixed` places, or (None) among those a search tries. None if nothing fits.

    `known` caches the fractions of these costs from search to search.
    """
    best, known = None, {} if known is None else known
    for _ in range(FLASH_ROUNDS):
        fractions = known.setdefault(allowed, Fractions(costs, allowed))
        found, flash_share = _searched_once(schedule, task, fractions, fixed, looks)
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
        if found is None and allowed.streaming:
            allowed = replace(allowed, streaming=False)
        elif abs(flash_share - allowed.flash_share) < 1e-3:
            break
        else:
            allowed = replace(allowed, flash_share=flash_share)
    return best


def _searched_once(
    schedule: str,
    task: PlanningTask,
    fractions: Fractions,
    fixed: Iterable[tuple[Places, ...]] | None,
    looks: int,
) -> tuple[MachinePlan | None, float]:
    allocator = Allocator(task.work, fractions, task.budgets, task.caching)
    search = _Search(allocator)
    if fixed is not None:
        for places in fixed:
            search.look(places)
    else:
        search.climb(task, fractions, looks)
    best, flash_share = None, 0.0
    for places, allocation in search.best(N_PLACED if looks else 1):
        found = _placed(schedule, task, fractions, places, allocation)
        if found is not None and (best is None or found.seconds < best.seconds):
            best, flash_share = found, allocation.flash_bytes / max(1.0, allocation.ram_share_bytes)
    return best, flash_share


def _placed(
    schedule: str, task: PlanningTask, fractions: Fractions, places: tuple[Places, ...], allocation: Allocation
) -> MachinePlan | None:
    """The plan of an allocation; if rounding to rows exceeds a budget, of one with that much less memory."""
    found = _cut(schedule, task, fractions, places, allocation)
    if found is not None:
        return found
    slack = sum(
        granule(product.n_rows) * product.columns * product.bytes_per_weight
        for stage in task.work.stages
        for product in stage.shape.products
    )
    vram = {name: max(0.0, n_bytes - slack) for name, n_bytes in task.budgets.vram_bytes.items()}
    ram, weights = (max(0.0, n - slack) for n in (task.budgets.ram_bytes, task.budgets.ram_weight_bytes))
    less = Budgets(ram, vram, weights)
    again = Allocator(task.work, fractions, less, task.caching).allocate(places, settled=True)
    return None if again is None else _cut(schedule, task, fractions, places, again)


def _cut(
    schedule: str, task: PlanningTask, fractions: Fractions, places: tuple[Places, ...], allocation: Allocation
) -> MachinePlan | None:
    """The best plan of an allocation over the ways to split matrices."""
    cuts: tuple[Cut, ...] = ("in turn", "whole") if fractions.allowed.filled else ("alike",)
    plans: list[MachinePlan | None] = []
    for cut in cuts:
        near = placement_of(task.work, places, allocation, fractions.names, cut, nearest=True)
        found = timed_plan(schedule, task, near)
        if found is None:
            below = placement_of(task.work, places, allocation, fractions.names, cut)
            found = timed_plan(schedule, task, below)
        plans.append(found)
    return min((each for each in plans if each is not None), key=lambda each: each.seconds, default=None)


class _Search:
    """Places that were tried, and their seconds."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._found: dict[tuple[Places, ...], Allocation | None] = {}

    def look(self, places: tuple[Places, ...]) -> float:
        """Seconds with these places; inf if they do not fit."""
        if places not in self._found:
            self._found[places] = self._allocator.allocate(places)
        found = self._found[places]
        return float("inf") if found is None else found.seconds

    def best(self, count: int) -> list[tuple[tuple[Places, ...], Allocation]]:
        """The best places tried, in order."""
        fitting = [(places, found) for places, found in self._found.items() if found is not None]
        first = sorted(fitting, key=lambda each: each[1].seconds)[:count]
        settled = [(places, self._allocator.allocate(places, settled=True)) for places, _ in first]
        return [(places, found) for places, found in settled if found is not None]

    def climb(self, task: PlanningTask, fractions: Fractions, looks: int) -> None:
        """Try the starting candidates, then neighbours of the best, until nothing improves or all tries are used."""
        for places in starts(task.work, fractions, task.budgets, task.caching):
            self.look(places)
        leaders = [places for places, _ in self.best(min(2, looks // LARGE_LOOKS))]
        for leader in leaders:
            self._climb_from(leader, task.work, len(fractions.names), len(self._found) + looks // len(leaders))

    def _climb_from(self, places: tuple[Places, ...], work: ModelWork, n_devices: int, most: int) -> None:
        improved = True
        while improved:
            improved = False
            for other in moved(places, work, n_devices, len(work.stages) <= SMALL_STAGES):
                if len(self._found) >= most:
                    return
                if other not in self._found and self.look(other) < self.look(places) * (1 - 1e-6):
                    places, improved = other, True
                    break


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
