"""Candidate homes for a model's stages, and neighbours of a candidate for the search.

In: a model, devices, budgets. Out: sequences of places (home, attention device) for all stages. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.placement.allocation import Places
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.fractions import Fractions
from edgeinfer.scheduling.placement.step_time import product_groups

STRIDES = (16, 4, 1)
"""Numbers of stages by which borders are moved."""


def by_speed(work: ModelWork, fractions: Fractions) -> list[int]:
    """Accelerators, the one that computes the whole model fastest from its own memory first."""
    shapes: dict[int, int] = {}
    for stage in work.stages:
        shapes[id(stage.shape)] = shapes.get(id(stage.shape), 0) + 1
    known = {id(stage.shape): stage.shape for stage in work.stages}

    def seconds(device: int) -> float:
        total = 0.0
        for key, count in shapes.items():
            shape = known[key]
            lanes = [fractions.lanes(shape, group, device)[device] for group in range(len(product_groups(shape)))]
            alone = sum(lane.fixed_s + lane.compute_s for lane in lanes)
            total += count * (fractions.stage_s(shape, device, device) + alone)
        return total

    return sorted(range(1, len(fractions.names)), key=seconds)


def starts(work: ModelWork, fractions: Fractions, budgets: Budgets, caching: Caching) -> Iterator[tuple[Places, ...]]:
    """Everything on one device, KV caches there or not; whole layers as far as memory goes; layers evenly spread."""
    n_stages, order = len(work.stages), by_speed(work, fractions)
    yield ((0, 0),) * n_stages
    if not order:
        return
    yield from layered(work, fractions, budgets, caching)
    for device in order:
        yield placed_alike(work, device, device)
        yield placed_alike(work, device, 0)
        yield placed_alike(work, 0, device)
    rooms = [budgets.vram_bytes.get(fractions.names[device], 0.0) for device in order]
    for rest in order:
        yield whole_layers(work, order, rooms, caching, rest)
    yield cached_as_it_fits(backward(work), order, rooms, caching)[::-1]
    yield cached_as_it_fits(work, order, rooms, caching)
    yield cached_where_room_is(work, order, rooms, budgets.ram_bytes, caching)


def layered(work: ModelWork, fractions: Fractions, budgets: Budgets, caching: Caching) -> Iterator[tuple[Places, ...]]:
    """Runs of layers on accelerators: whole ones as far as memory goes, the first or the last; all, evenly spread."""
    order = by_speed(work, fractions)
    rooms = [budgets.vram_bytes.get(fractions.names[device], 0.0) for device in order]
    yield whole_layers(work, order, rooms, caching, 0)
    yield whole_layers(backward(work), order, rooms, caching, 0)[::-1]
    yield spread(work, order, rooms)


def placed_alike(work: ModelWork, home: int, attention: int) -> tuple[Places, ...]:
    """Every stage at one home, every KV cache on one device."""
    return tuple((home, home if stage.shape.attention is None else attention) for stage in work.stages)


def stage_bytes(work: ModelWork) -> list[float]:
    """Bytes of the weights of each stage."""
    known = {id(stage.shape): stage.shape for stage in work.stages}
    n_bytes = {key: shape.weight_bytes for key, shape in known.items()}
    return [n_bytes[id(stage.shape)] for stage in work.stages]


def whole_layers(
    work: ModelWork, order: list[int], rooms: list[float], caching: Caching, rest: int
) -> tuple[Places, ...]:
    """Stages with weights and KV cache on the first device that has room, one device after another, then the rest.

    Stages that do not fit have the home `rest`, and attend on the CPU.
    """
    left, number, places = list(rooms), 0, []
    for stage, weights in zip(work.stages, stage_bytes(work), strict=True):
        need = weights + caching.stage_bytes(stage.shape)
        while number < len(order) and need > left[number]:
            number += 1
        if number == len(order):
            places.append((rest, rest if stage.shape.attention is None else 0))
            continue
        left[number] -= need
        places.append((order[number], order[number]))
    return tuple(places)


def backward(work: ModelWork) -> ModelWork:
    """The stages in reverse, so that the head and the last layers are placed first."""
    return replace(work, stages=work.stages[::-1])


def spread(work: ModelWork, order: list[int], rooms: list[float]) -> tuple[Places, ...]:
    """All stages on accelerators, in proportion to their memories, with their KV caches."""
    total, places, done, n_bytes = sum(rooms) or 1.0, [], 0.0, stage_bytes(work)
    whole = max(1.0, sum(n_bytes))
    borders, end = [], 0.0
    for room in rooms:
        end += room / total
        borders.append(end)
    for weights in n_bytes:
        done += weights / whole
        number = next((number for number, border in enumerate(borders) if done <= border + 1e-9), len(order) - 1)
        places.append((order[number], order[number]))
    return tuple(places)


def cached_as_it_fits(work: ModelWork, order: list[int], rooms: list[float], caching: Caching) -> tuple[Places, ...]:
    """All stages on accelerators, KV caches there as far as they fit, the others in the machine's memory."""
    left, number, places = list(rooms), 0, []
    for stage in work.stages:
        need = caching.stage_bytes(stage.shape)
        fitting = next((after for after in range(number, len(order)) if need <= left[after]), None)
        if fitting is not None:
            number = fitting
            left[number] -= need
        device = order[number]
        places.append((device, device if fitting is not None or stage.shape.attention is None else 0))
    return tuple(places)


def cached_where_room_is(
    work: ModelWork, order: list[int], rooms: list[float], ram: float, caching: Caching
) -> tuple[Places, ...]:
    """All stages on the CPU, the largest KV caches first, each where most room is left: fits in almost every case."""
    left = {0: ram, **dict(zip(order, rooms, strict=True))}
    places = [(0, 0)] * len(work.stages)
    needs = [caching.stage_bytes(stage.shape) for stage in work.stages]
    for number in sorted(range(len(needs)), key=lambda number: -needs[number]):
        if work.stages[number].shape.attention is not None:
            device = max(left, key=lambda device: left[device])
            left[device] -= needs[number]
            places[number] = (0, device)
    return tuple(places)


def moved(
    places: tuple[Places, ...], work: ModelWork, n_devices: int, everywhere: bool
) -> Iterator[tuple[Places, ...]]:
    """Neighbours: runs of stages placed otherwise. `everywhere`: any run; else only runs next to a change of places."""
    n_stages = len(places)
    kinds = [(home, attention) for home in range(n_devices) for attention in range(n_devices)]
    runs = _all_runs(n_stages) if everywhere else _border_runs(places)
    for start, stop in runs:
        for home, attention in kinds:
            changed = list(places)
            for number in range(start, stop):
                attends = work.stages[number].shape.attention is not None
                changed[number] = (home, attention if attends else home)
            if tuple(changed) != places:
                yield tuple(changed)


def _all_runs(n_stages: int) -> list[tuple[int, int]]:
    return [(start, stop) for start in range(n_stages) for stop in range(start + 1, n_stages + 1)]


def _border_runs(places: tuple[Places, ...]) -> list[tuple[int, int]]:
    """Runs of some lengths on both sides of each change, whole runs, and the last stage."""
    n_stages = len(places)
    changes = [0] + [number for number in range(1, n_stages) if places[number] != places[number - 1]] + [n_stages]
    runs = [(start, stop) for start, stop in pairwise(changes)] + [(n_stages - 1, n_stages)]
    for stride in STRIDES:
        for change in changes:
            runs += [(max(0, change - stride), change), (change, min(n_stages, change + stride))]
    return [run for run in dict.fromkeys(runs) if run[0] < run[1]]
