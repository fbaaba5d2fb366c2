"""The best plan of a small instance, found by looking at every one on a grid.

The space: every stage has any device as home and any as the place of attention; the products of a group are cut alike
into quarters (halves with two accelerators), each piece on any device and held in any way (own, streamed to an
accelerator, on flash for the CPU);
or each product of a group lies whole on any device in its own memory. Every group is timed by `step_time`. Seconds and
bytes add up over groups and stages (device rates here do not depend on how much is read), so a beginning of a plan that
another one beats in seconds and in every memory, with the same home and the same devices taking part, need not be
continued; nothing else is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as combinations
from operator import le

from edgeinfer.scheduling.cost.work import ModelWork, StageShape, StageWork
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.placement.budgets import usage_of
from edgeinfer.scheduling.placement.machine_plan import PlanningTask
from edgeinfer.scheduling.placement.placement import Held, Placement, RowRange, StagePlacement
from edgeinfer.scheduling.placement.step_time import PassCosts, product_groups, step_time

PIECES = {2: 4, 3: 2}
"""Into which a group is cut, by the number of devices."""
STEP = 2e-4
"""Of the limit: seconds of every choice are rounded down to multiples of it, so that equals are seen as such."""
Bytes = tuple[float, ...]
State = tuple[float, Bytes, frozenset[str]]
"""Seconds, bytes of each memory, devices that take part."""


def best_seconds(task: PlanningTask, limit: float = float("inf")) -> float:
    """The fewest seconds of a pass over the whole space; inf if nothing fits, or nothing takes less than `limit`."""
    names = [rates.name for rates in task.profile.devices]
    costs = PassCosts(task.profile, task.step, task.caching.kv, {})
    shapes = {id(stage.shape): stage.shape for stage in task.work.stages}
    parts = {(key, home): _parts(task, shape, home) for key, shape in shapes.items() for home in names}
    step_s = STEP * limit if limit < float("inf") else 0.0
    if step_s:
        parts = {key: [_rounded(states, step_s) for states in lists] for key, lists in parts.items()}
    least = {key: min(_least(parts[key, home]) for home in names) for key in shapes}
    rest = sum(least[id(stage.shape)] for stage in task.work.stages)
    n_bytes = task.step.n_rows * task.work.width * 4
    reached: dict[str, list[State]] = {name: [(0.0, (0.0,) * len(names), frozenset())] for name in names}
    for number, stage in enumerate(task.work.stages):
        rest -= least[id(stage.shape)]
        following: dict[str, list[State]] = {}
        for home in names:
            states = list(reached[home])
            for start in names if number else ():
                if start != home:
                    moved = costs.move_s(start, home, n_bytes)
                    states += [(seconds + moved, held, used) for seconds, held, used in reached[start]]
            lists = parts[id(stage.shape), home]
            later = _least(lists)
            for choices in lists:
                later -= min(choice[0] for choice in choices)
                states = _joined(states, choices, _binding(task), limit - rest - later)
            following[home] = states
        reached = following
    ends = [state for states in reached.values() for state in states]
    totals = (seconds + costs.fixed_s(tuple(used)) for seconds, _, used in ends)
    return min((total for total in totals if total < limit), default=float("inf"))


def _binding(task: PlanningTask) -> Bytes:
    """The budgets; inf where everything fits, so that a memory that cannot run out sets no plans apart."""
    total = task.work.weight_bytes + sum(task.caching.stage_bytes(stage.shape) for stage in task.work.stages)
    names = [rates.name for rates in task.profile.devices]
    budgets = (task.budgets.ram_bytes, *(task.budgets.vram_bytes[name] for name in names[1:]))
    return tuple(float("inf") if budget >= total else budget for budget in budgets)


def _least(lists: list[list[State]]) -> float:
    return sum(min(choice[0] for choice in choices) for choices in lists)


def _parts(task: PlanningTask, shape: StageShape, home: str) -> list[list[State]]:
    """Choices of a stage with a home: its attention and other ops, then each group."""
    names = [rates.name for rates in task.profile.devices]
    attending = names if shape.attention is not None else [home]
    lists = [[_measured(task, shape, StagePlacement(home, _at_home(shape, home), name), None) for name in attending]]
    for group in range(len(product_groups(shape))):
        splits = _splits(task, shape, home, group)
        lists.append([_measured(task, shape, StagePlacement(home, products, home), group) for products in splits])
    bounds = _binding(task)
    return [_undominated([_ignoring(state, bounds) for state in states]) for states in lists]


def _rounded(states: list[State], step_s: float) -> list[State]:
    return _undominated([(int(seconds / step_s) * step_s, held, used) for seconds, held, used in states])


def _ignoring(state: State, bounds: Bytes) -> State:
    held = tuple(0.0 if most == float("inf") else used for used, most in zip(state[1], bounds, strict=True))
    return state[0], held, state[2]


def _measured(task: PlanningTask, shape: StageShape, placed: StagePlacement, group: int | None) -> State:
    """A stage without its groups (None), or one group of it."""
    work = ModelWork("one", (StageWork("one", shape, ()),), task.work.width)
    time = step_time(task.profile, work, Placement((placed,)), task.step, task.caching.kv).stages[0]
    names = [rates.name for rates in task.profile.devices]
    bare = shape if group is None else StageShape(shape.products, None, 0, 0, shape.for_outputs)
    kept = range(*product_groups(shape)[group]) if group is not None else range(0)
    parts = tuple(parts if number in kept else () for number, parts in enumerate(placed.products))
    counted = ModelWork("one", (StageWork("one", bare, ()),), task.work.width)
    usage = usage_of(counted, Placement((StagePlacement(placed.home, parts, placed.attention),)), task.caching)
    n_bytes = (usage.ram_bytes, *(usage.vram_bytes.get(name, 0.0) for name in names[1:]))
    used = {placed.home} | {part.device for each in parts for part in each}
    if group is None:
        used |= {placed.attention} if placed.attention is not None and shape.attention is not None else set()
        return time.attention_s + time.others_s, n_bytes, frozenset(used)
    return time.groups[group].seconds, n_bytes, frozenset(used)


def _at_home(shape: StageShape, home: str) -> tuple[tuple[RowRange, ...], ...]:
    return tuple((RowRange(home, 0, product.n_rows),) for product in shape.products)


def _splits(task: PlanningTask, shape: StageShape, home: str, group: int) -> Iterator[tuple[tuple[RowRange, ...], ...]]:
    first, stop = product_groups(shape)[group]
    names = [rates.name for rates in task.profile.devices]
    kinds: list[tuple[str, Held]] = [(name, "own") for name in names] + [(name, "streamed") for name in names[1:]]
    if task.profile.disk is not None:
        kinds.append((CPU, "flash"))
    for counts in _compositions(PIECES[len(names)], len(kinds)):
        products = list(_at_home(shape, home))
        for number in range(first, stop):
            piece, start, parts = shape.products[number].n_rows // PIECES[len(names)], 0, []
            for (name, held), count in zip(kinds, counts, strict=True):
                if count:
                    parts.append(RowRange(name, start, start + count * piece, held))
                    start += count * piece
            products[number] = tuple(parts)
        yield tuple(products)
    for devices in combinations(names, repeat=stop - first):
        products = list(_at_home(shape, home))
        for number, name in zip(range(first, stop), devices, strict=True):
            products[number] = (RowRange(name, 0, shape.products[number].n_rows),)
        yield tuple(products)


def _compositions(total: int, n_kinds: int) -> Iterator[tuple[int, ...]]:
    if n_kinds == 1:
        yield (total,)
        return
    for count in range(total + 1):
        for rest in _compositions(total - count, n_kinds - 1):
            yield (count, *rest)


def _joined(states: list[State], choices: list[State], budgets: Bytes, limit: float) -> list[State]:
    joined = []
    for seconds, n_bytes, used in states:
        for more, other_bytes, others in choices:
            if seconds + more < limit:
                total = tuple(one + two for one, two in zip(n_bytes, other_bytes, strict=True))
                if all(one <= most for one, most in zip(total, budgets, strict=True)):
                    joined.append((seconds + more, total, used | others))
    return _undominated(joined)


def _undominated(states: list[State]) -> list[State]:
    """The states that no other one with the same devices beats."""
    kept: dict[frozenset[str], list[Bytes]] = {}
    chosen = []
    for state in sorted(states, key=lambda state: (state[0], state[1])):
        fronts = kept.setdefault(state[2], [])
        if not any(all(map(le, held, state[1])) for held in reversed(fronts)):
            fronts.append(state[1])
            chosen.append(state)
    return chosen
