"""Turns shares of groups into rows of matrices: the placement of an allocation.

In: an allocation and the homes it was made for. Out: a `Placement` that covers every row of every matrix once. Rows of
accelerators are rounded down to whole granules, so that rounding never exceeds their memory; the remaining rows go to
the CPU, or where they cost no memory; or, if memory allows, rounding is to the nearest granule. Knows no times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape
from edgeinfer.scheduling.placement.allocation import AllocatedStages, Allocation, Places
from edgeinfer.scheduling.placement.fractions import SplitOption
from edgeinfer.scheduling.placement.placement import Held, Placement, RowRange, StagePlacement, granule
from edgeinfer.scheduling.placement.step_time import product_groups

WHOLE = 1 - 1e-6
LEAST_SHARE = 1e-9

Cut = Literal["alike", "in turn", "whole"]
"""How matmuls of a group are split: all in the same shares; one lane's rows after another's, so that few matmuls have
rows of two devices; or the latter without a lane continuing into another matmul."""


def placement_of(
    work: ModelWork,
    places: Sequence[Places],
    allocation: Allocation,
    names: Sequence[str],
    cut: Cut = "alike",
    nearest: bool = False,
) -> Placement:
    """The placement of an allocation; equal stages with equal options share one record.

    `cut`: see Cut; `nearest`: see parts_of.
    """
    waiting = {key: _queues(pieces) for key, pieces in allocation.pieces.items()}
    known: dict[tuple[int, Places, tuple[int, ...]], StagePlacement] = {}
    stages = []
    for stage, place in zip(work.stages, places, strict=True):
        queues = waiting.get((id(stage.shape), place), [])
        options = [_next(queue) for queue in queues]
        key = (id(stage.shape), place, tuple(map(id, options)))
        if key not in known:
            known[key] = _placed(stage.shape, place, options, names, cut, nearest)
        stages.append(known[key])
    return Placement(tuple(stages))


def _queues(pieces: Sequence[AllocatedStages]) -> list[list[tuple[SplitOption, int]]]:
    """For each group its options and how many stages they are left for, the slowest first."""
    groups: dict[int, list[AllocatedStages]] = {}
    for piece in pieces:
        groups.setdefault(piece.group, []).append(piece)
    ordered = [sorted(groups[group], key=lambda piece: -piece.option.seconds) for group in sorted(groups)]
    return [[(piece.option, piece.count) for piece in queue] for queue in ordered]


def _next(queue: list[tuple[SplitOption, int]]) -> SplitOption:
    option, left = queue.pop()
    if left > 1:
        queue.append((option, left - 1))
    return option


def _placed(
    shape: StageShape, place: Places, options: Sequence[SplitOption], names: Sequence[str], cut: Cut, nearest: bool
) -> StagePlacement:
    products: list[tuple[RowRange, ...]] = []
    for (first, stop), option in zip(product_groups(shape), options, strict=True):
        group = shape.products[first:stop]
        alike = cut == "alike" or stop - first == 1
        each = [option] * len(group) if alike else _in_turn(group, option, place[0], cut == "whole")
        products += [parts_of(product.n_rows, own, names, nearest) for product, own in zip(group, each, strict=True)]
    attention = names[place[1]] if shape.attention is not None else None
    return StagePlacement(names[place[0]], tuple(products), attention)


def _in_turn(group: Sequence[MatMulWork], option: SplitOption, home: int, whole: bool) -> list[SplitOption]:
    """Shares of each matmul if lanes take one after another: other devices first, the home the rest."""
    total = sum(product.n_bytes for product in group)
    if whole:
        option = _kept_whole([product.n_bytes / total for product in group], option, home)
    order = [device for device in range(len(option.own)) if device != home] + [home]
    options, start = [], 0.0
    for product in group:
        stop, taken = start + product.n_bytes / total, 0.0
        own, streamed, flash = [0.0] * len(order), [0.0] * len(order), [0.0] * len(order)
        for device in order:
            wanted = (option.own[device], option.streamed[device], option.flash[device])
            found = [0.0, 0.0, 0.0]
            for index, share in enumerate(wanted):
                found[index] = max(0.0, min(stop, taken + share) - max(start, taken)) / (stop - start)
                taken += share
            own[device], streamed[device], flash[device] = found
        options.append(SplitOption(0.0, tuple(own), tuple(streamed), tuple(flash)))
        start = stop
    return options


def _kept_whole(sizes: Sequence[float], option: SplitOption, home: int) -> SplitOption:
    """An option whose lanes, except the home's, end where a matmul ends if they reach that far; home takes the rest."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    start, own, given = 0.0, list(option.own), 0.0
    for device in range(len(own)):
        if device != home and own[device] > 0:
            stop = start + own[device]
            reached = [end for end in ends if start < end <= stop]
            given += stop - reached[-1] if reached else 0.0
            own[device] -= stop - reached[-1] if reached else 0.0
            start += own[device]
    own[home] += given
    return SplitOption(option.seconds, tuple(own), option.streamed, option.flash)


def parts_of(n_rows: int, option: SplitOption, names: Sequence[str], nearest: bool = False) -> tuple[RowRange, ...]:
    """The parts of one matrix; shares rounded down with the rest in RAM, or rounded to the `nearest` granule."""
    wanted: list[tuple[int, Held, float]] = []
    for device in range(len(names)):
        kinds: tuple[tuple[Held, float], ...] = (
            ("own", option.own[device]),
            ("streamed", option.streamed[device]),
            ("flash", option.flash[device]),
        )
        wanted += [(device, held, share) for held, share in kinds]
    wanted = [each for each in wanted if each[2] > LEAST_SHARE]
    size = granule(n_rows)
    up = 0.5 if nearest else 1e-6
    counts = [n_rows if share > WHOLE else int(share * n_rows / size + up) * size for _, _, share in wanted]
    spare = [index for index, (device, held, _) in enumerate(wanted) if held != "own" or device == 0]
    takers = range(len(wanted)) if nearest else spare or range(len(wanted))
    taker = max(takers, key=lambda index: (not nearest and wanted[index][1] == "flash", wanted[index][2]))
    counts[taker] += n_rows - sum(counts)
    parts, start = [], 0
    for (device, held, _), count in zip(wanted, counts, strict=True):
        if count > 0:
            parts.append(RowRange(names[device], start, start + count, held))
            start += count
    return tuple(parts)
