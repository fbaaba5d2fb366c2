"""Schedules by name: those of other systems, and the planner's, on the same machine and model.

In: a `PlanningTask` and a name. Out: a `MachinePlan`. Each entry is a function and one line of description; `auto`
takes the best predicted of all. Raises DoesNotFit if a schedule cannot hold the model, UnknownKey for an unknown name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgeinfer.errors import DoesNotFit, UnknownKey
from edgeinfer.scheduling.placement.allocation import Places
from edgeinfer.scheduling.placement.budgets import Budgets, refusal
from edgeinfer.scheduling.placement.candidates import by_speed, cached_as_it_fits, spread, whole_layers
from edgeinfer.scheduling.placement.fractions import Allowed, Fractions, SplitOption
from edgeinfer.scheduling.placement.machine_plan import MachinePlan, PlanningTask, timed_plan
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement
from edgeinfer.scheduling.placement.planner import even_footprints, plan, searched
from edgeinfer.scheduling.placement.rows import parts_of
from edgeinfer.scheduling.placement.step_time import PassCosts


@dataclass(frozen=True, slots=True)
class Schedule:
    """How to place a model, and the text that describes it."""

    summary: str
    place: Callable[[PlanningTask], MachinePlan]


def scheduled(name: str, task: PlanningTask) -> MachinePlan:
    """The plan of the schedule called `name`."""
    if name not in SCHEDULES:
        raise UnknownKey(f"no schedule is called {name!r}; edgeinfer has: {', '.join(SCHEDULES)}")
    return SCHEDULES[name].place(task)


def on_cpu(task: PlanningTask) -> MachinePlan:
    """Everything on the CPU; what RAM does not hold is read from disk in every pass, the same share of each matrix."""
    weights = task.work.weight_bytes
    caches = sum(task.caching.stage_bytes(stage.shape) for stage in task.work.stages)
    missing = max(0.0, weights + caches - task.budgets.ram_bytes, weights - task.budgets.ram_weight_bytes)
    if missing > weights or (missing and task.profile.disk is None):
        raise _refused(task)
    share = min(1.0, missing / max(1.0, weights))
    places = ((0, 0),) * len(task.work.stages)
    none = (0.0,) * (len(task.profile.devices) - 1)
    for flash in (share, min(1.0, share + 0.05), 1.0 if share else 0.0):  # rounding to rows may take slightly more
        option = SplitOption(0.0, (1 - flash, *none), (0.0, *none), (flash, *none))
        found = timed_plan("cpu", task, _alike(task, places, [option] * len(places)))
        if found is not None:
            return found
    raise _refused(task)


def on_accelerators(task: PlanningTask) -> MachinePlan:
    """Whole layers on accelerators, one after another, none anywhere else."""
    places = _layers(task)
    placement = _alike(task, places, [_held_by(task, home) for home, _ in places])
    found = timed_plan("accelerator", task, placement)
    if found is None or any(home == 0 for home, _ in places):
        alone = Budgets(0.0, task.budgets.vram_bytes)
        raise refusal(task.work, alone, task.caching, has_disk=False)
    return found


def split_by_layers(task: PlanningTask) -> MachinePlan:
    """Whole layers on accelerators as far as their memory goes, the rest on the CPU (llama.cpp's `-ngl`)."""
    places = _layers(task)
    found = timed_plan("static", task, _alike(task, places, [_held_by(task, home) for home, _ in places]))
    return found or on_cpu_rest(task, places)


def on_cpu_rest(task: PlanningTask, places: Sequence[Places]) -> MachinePlan:
    """Whole layers on accelerators as placed; of the CPU's layers, what RAM does not hold is read from disk."""
    own = sum(s.shape.weight_bytes for s, (home, _) in zip(task.work.stages, places, strict=True) if home == 0)
    caches = sum(
        task.caching.stage_bytes(stage.shape)
        for stage, (_, device) in zip(task.work.stages, places, strict=True)
        if device == 0
    )
    missing = max(own + caches - task.budgets.ram_bytes, own - task.budgets.ram_weight_bytes)
    if task.profile.disk is None or missing > own:
        raise _refused(task)
    none = (0.0,) * (len(task.profile.devices) - 1)
    flash = min(1.0, missing / max(1.0, own) + 0.05)
    option = SplitOption(0.0, (1 - flash, *none), (0.0, *none), (flash, *none))
    options = [_held_by(task, home) if home else option for home, _ in places]
    found = timed_plan("static", task, _alike(task, places, options))
    if found is None:
        raise _refused(task)
    return found


def streamed(task: PlanningTask) -> MachinePlan:
    """Accelerators compute everything; weights that their memory does not hold come over the link in every pass.

    As in FlexGen (arXiv 2303.06865) and Accelerate offload. Each of several accelerators has a run of layers.
    """
    return _shared("stream", task, Allowed(cpu_computes=False, across=False))


def hetegen(task: PlanningTask) -> MachinePlan:
    """Rows of every matrix split between CPU, accelerator memory and streaming, balanced (arXiv 2403.01164)."""
    return _shared("hetegen", task, Allowed(across=False))


def by_rows(task: PlanningTask) -> MachinePlan:
    """Rows of every matrix on all devices by their speed, whatever launches cost; everything else on the CPU."""
    _order(task)
    rates = [_work_rate(task, number) for number in range(len(task.profile.devices))]
    shares = tuple(rate / sum(rates) for rate in rates)
    none = (0.0,) * len(shares)
    placement = _alike(
        task, ((0, 0),) * len(task.work.stages), [SplitOption(0.0, shares, none, none)] * len(task.work.stages)
    )
    found = timed_plan("rows", task, placement)
    if found is None:
        raise _refused(task)
    return found


def _work_rate(task: PlanningTask, number: int) -> float:
    """Weights per second of a device in passes like the task's, over all matmuls of the model."""
    rates, n_tokens = task.profile.devices[number], task.step.n_rows
    seconds = sum(
        product.n_weights * rates.product(product.form, product.bytes_per_weight).weight_s(n_tokens, product.columns)
        for stage in task.work.stages
        for product in stage.shape.products
    )
    return 1 / max(seconds, 1e-12)


def best_predicted(task: PlanningTask) -> MachinePlan:
    """The best predicted of the planner's search and of all schedules that take launch costs into account."""
    best = plan(task)
    for name, schedule in SCHEDULES.items():
        if name not in ("auto", "rows"):
            try:
                other = schedule.place(task)
            except DoesNotFit:
                continue
            best = other if other.seconds < best.seconds else best
    return MachinePlan("auto", best.placement, best.time, best.usage)


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "auto": Schedule("the best predicted of what the planner finds and of all others", best_predicted),
        "cpu": Schedule("everything on the CPU, what RAM does not hold from disk", on_cpu),
        "accelerator": Schedule("everything in the memory of accelerators", on_accelerators),
        "static": Schedule("whole layers on accelerators as far as memory goes, the rest on the CPU", split_by_layers),
        "stream": Schedule("accelerators compute, weights that do not fit come over the link", streamed),
        "rows": Schedule("rows of every matrix on all devices by their speed, whatever launches cost", by_rows),
        "hetegen": Schedule("rows of every matrix balanced between CPU, accelerator and link", hetegen),
    }
)


def _refused(task: PlanningTask) -> DoesNotFit:
    return refusal(task.work, task.budgets, task.caching, task.profile.disk is not None)


def _order(task: PlanningTask) -> list[int]:
    """Accelerators, the fastest first. Raises DoesNotFit on a machine without any."""
    if not task.profile.accelerators:
        raise DoesNotFit(f"{task.profile.name} has no accelerator; schedules that need none: auto, cpu")
    return by_speed(task.work, Fractions(_costs(task), Allowed()))


def _costs(task: PlanningTask) -> PassCosts:
    return PassCosts(task.profile, task.step, task.caching.kv, even_footprints(task))


def _rooms(task: PlanningTask, order: Sequence[int]) -> list[float]:
    return [task.budgets.vram_bytes.get(task.profile.devices[device].name, 0.0) for device in order]


def _layers(task: PlanningTask) -> tuple[Places, ...]:
    order = _order(task)
    return whole_layers(task.work, order, _rooms(task, order), task.caching, 0)


def _held_by(task: PlanningTask, device: int) -> SplitOption:
    n_devices = len(task.profile.devices)
    own = tuple(float(number == device) for number in range(n_devices))
    return SplitOption(0.0, own, (0.0,) * n_devices, (0.0,) * n_devices)


def _alike(task: PlanningTask, places: Sequence[Places], options: Sequence[SplitOption]) -> Placement:
    """Every matrix of a stage split alike."""
    names = [rates.name for rates in task.profile.devices]
    known: dict[tuple[int, Places, SplitOption], StagePlacement] = {}
    stages = []
    for stage, place, option in zip(task.work.stages, places, options, strict=True):
        key = (id(stage.shape), place, option)
        if key not in known:
            products: list[tuple[RowRange, ...]] = [
                parts_of(each.n_rows, option, names) for each in stage.shape.products
            ]
            attention = names[place[1]] if stage.shape.attention is not None else None
            known[key] = StagePlacement(names[place[0]], tuple(products), attention)
        stages.append(known[key])
    return Placement(tuple(stages))


def _shared(name: str, task: PlanningTask, allowed: Allowed) -> MachinePlan:
    """Rows divided with all homes on accelerators, KV caches there as far as they fit, or with all on the CPU."""
    order = _order(task)
    rooms = _rooms(task, order)
    kinds = [
        spread(task.work, order, rooms),
        cached_as_it_fits(task.work, order, rooms, task.caching),
        tuple((order[0], order[0] if s.shape.attention is None else 0) for s in task.work.stages),
        whole_layers(task.work, order, rooms, task.caching, order[-1]),
    ]
    if allowed.cpu_computes:
        kinds.append(((0, 0),) * len(task.work.stages))
    found = searched(name, task, _costs(task), allowed, kinds)
    if found is None:
        raise _refused(task)
    return found
