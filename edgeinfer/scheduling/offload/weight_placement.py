"""Which pieces of a model stay in memory if it does not hold all of them, and how the others are read.

In: the pieces in the order of a pass, how often a pass needs each, the memory for weights, the disk's rates. Out: a
`WeightPlacement`, or why there is none. Pieces that save the most reading per byte stay; among equals the streamed ones
are spread evenly between those that stay, so that the disk and the cores are always busy. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.cost.memory import enough
from edgeinfer.scheduling.machine.profile import Disk
from edgeinfer.scheduling.offload.reads import ReadTimes, StreamedRecords
from edgeinfer.text_values import size_text

USUAL_READERS = 4
"""Fewest reads in flight at a time, also used if the disk was not measured."""
LARGE_BYTES, MOST_LARGE_READERS = 256 << 10, 6
"""Larger reads gain nothing, even if a noisy curve says so, and take memory."""
ENOUGH = 0.95
"""Share of the disk's best rate at which fewer reads in flight are preferred."""
SPARE_PIECES = 2
"""Pieces in the window besides those that are being read: one in use, one waiting."""
WINDOW_SHARE = 0.5
"""Largest share of the memory for weights that the window takes."""
LONGEST_TOKEN_S = 60.0
"""Longest acceptable time for a token."""


class SlowDisk(DoesNotFit):
    """A plan for which there is room, but with which a token would take too long."""


@dataclass(frozen=True, slots=True)
class WeightPiece:
    """A piece of a model: its bytes, and how often a pass over one token needs it (below 1: only some passes do)."""

    nbytes: int
    uses: float = 1.0


@dataclass(frozen=True, slots=True)
class ExpertLoads:
    """Experts of a mixture: their number in all layers, bytes of the largest, and how many a token uses."""

    count: int
    nbytes: int
    used: int
    active: int
    """Experts used in one layer."""


@dataclass(frozen=True, slots=True)
class WeightPlacement:
    """What stays in memory and how the rest is read.

    pinned          numbers of the pieces that stay
    window_bytes    memory that the others pass through
    n_readers       reads in flight at a time
    streamed_bytes  read in a pass over one token; of experts as if all were used equally, of records as they are used
    n_experts       experts that fit in memory
    record_bytes    memory for records, and for reading them
    """

    pinned: frozenset[int]
    window_bytes: int
    n_readers: int
    streamed_bytes: float
    n_experts: int = 0
    record_bytes: int = 0


class RecordLoads(Protocol):
    """Records of layers of which a pass reads those that it uses, beside the pieces that every pass needs.

    nbytes       of all of them
    least_room   smallest memory at which reading them is worthwhile, that for reading included
    """

    @property
    def nbytes(self) -> int: ...
    @property
    def least_room(self) -> int: ...

    def place(self, loads: Sequence[WeightPiece], budget_bytes: int, disk: Disk | None, what: str) -> WeightPlacement:
        """Divide memory between records and the pieces that every pass needs. Raises as `place_weights`."""
        ...

    def in_memory(self, n_bytes: int, times: ReadTimes) -> StreamedRecords:
        """All of them, with this much memory, including that for reading, to hold some."""
        ...


def place_weights(loads: Sequence[WeightPiece], budget_bytes: int, disk: Disk | None, what: str) -> WeightPlacement:
    """What stays in `budget_bytes` of memory, the window included; `what` names the model in messages.

    Raises DoesNotFit for a budget without room for a window, and if a token would take too long.
    """
    total = sum(load.nbytes for load in loads)
    largest = max(load.nbytes for load in loads)
    if total <= budget_bytes:
        return WeightPlacement(frozenset(range(len(loads))), 0, readers(disk, largest), 0.0)
    if budget_bytes < 2 * largest:
        raise DoesNotFit(
            f"{enough(max(0, budget_bytes))} of memory for the weights of {what} is too little: pieces of up to "
            f"{enough(largest)} pass through it two at a time; {enough(2 * largest)} at least would work"
        )
    n_readers = readers(disk, largest)
    staying = sum(load.nbytes for load in loads if load.uses > 1)  # a wider window is worth less than these
    most = min(int(budget_bytes * WINDOW_SHARE), budget_bytes - staying)
    window = max(2 * largest, min((n_readers + SPARE_PIECES) * largest, most))
    pinned = pinned_loads(loads, budget_bytes - window)
    streamed = sum(load.nbytes * load.uses for number, load in enumerate(loads) if number not in pinned)
    found = WeightPlacement(pinned, window, n_readers, streamed)
    _check_hope(found, total, disk, what)
    return found


def place_mixture(
    loads: Sequence[WeightPiece], experts: ExpertLoads, budget_bytes: int, disk: Disk | None, what: str
) -> WeightPlacement:
    """The same for a model with experts beside the pieces that every pass needs: those pieces come first.

    Raises as `place_weights`.
    """
    n_readers = readers(disk, experts.nbytes)
    least = (experts.active + n_readers) * experts.nbytes
    dense = sum(load.nbytes for load in loads)
    passing = min(dense, 2 * max(load.nbytes for load in loads))
    if budget_bytes < least + passing:
        staying = sum(load.nbytes for load in loads if load.uses > 1)
        works = max(least + passing, room_for_staying(loads, experts, disk, staying) if staying else 0)
        raise DoesNotFit(
            f"{enough(max(0, budget_bytes))} of memory for the weights of {what} is too little: a token uses "
            f"{experts.active} experts of {enough(experts.nbytes)} a layer, {n_readers} are on their way, and the rest "
            f"takes {enough(works - least)}; {enough(works)} at least would work"
        )
    found = place_weights(loads, min(dense, budget_bytes - least), disk, what)
    held = found.window_bytes + sum(loads[number].nbytes for number in found.pinned)
    n_experts = min(experts.count, (budget_bytes - held) // experts.nbytes)
    missing = experts.used * experts.nbytes * (1 - n_experts / experts.count)
    found = WeightPlacement(found.pinned, found.window_bytes, n_readers, found.streamed_bytes + missing, n_experts)
    _check_hope(found, dense + experts.count * experts.nbytes, disk, what)
    return found


def room_for_staying(loads: Sequence[WeightPiece], experts: ExpertLoads | None, disk: Disk | None, staying: int) -> int:
    """Memory in which `staying` bytes of mandatory pieces surely fit, however large the window is."""
    largest = max(load.nbytes for load in loads)
    window = (readers(disk, largest) + SPARE_PIECES) * largest
    of_experts = 0 if experts is None else (experts.active + readers(disk, experts.nbytes)) * experts.nbytes
    return of_experts + min(window + staying, sum(load.nbytes for load in loads))


def pinned_loads(loads: Sequence[WeightPiece], room: int) -> frozenset[int]:
    """Numbers of the pieces that stay in `room` bytes: those with most uses, evenly spread among equals."""
    pinned: set[int] = set()
    for uses in sorted({load.uses for load in loads}, reverse=True):
        equals = [number for number, load in enumerate(loads) if load.uses == uses]
        n_bytes = sum(loads[number].nbytes for number in equals)
        if n_bytes <= room:
            pinned.update(equals)
            room -= n_bytes
            continue
        chosen = _spread([(number, loads[number].nbytes) for number in equals], room)
        pinned.update(chosen)
        room -= sum(loads[number].nbytes for number in chosen)
    return frozenset(pinned)


def _spread(pieces: Sequence[tuple[int, int]], room: int) -> list[int]:
    """Pieces (number, bytes) that fit into `room`, spread as evenly over all of them as their sizes allow."""
    total = sum(n_bytes for _, n_bytes in pieces)
    chosen, held, passed = [], 0, 0
    for number, n_bytes in pieces:
        passed += n_bytes
        if held + n_bytes <= room * passed / total:
            chosen.append(number)
            held += n_bytes
    return chosen


def readers(disk: Disk | None, request_bytes: int) -> int:
    """The fewest reads in flight that nearly reach the disk's best rate for requests of that size."""
    if disk is None:
        return USUAL_READERS
    rates = {depth: curve(request_bytes) for depth, curve in disk.by_depth.items()}
    best = max(rates.values())
    fewest = min(depth for depth, rate in rates.items() if rate >= ENOUGH * best)
    most = MOST_LARGE_READERS if request_bytes >= LARGE_BYTES else max(rates)
    return max(USUAL_READERS, min(fewest, most))  # beside cores that compute, fewer leave the disk waiting


def fastest(disk: Disk | None) -> float | None:
    """Bytes per second at best, if known."""
    return None if disk is None else disk.best_bytes_s


def _check_hope(found: WeightPlacement, total: int, disk: Disk | None, what: str) -> None:
    """Raises DoesNotFit if reading alone makes a token take longer than is acceptable."""
    rate = fastest(disk)
    if rate is None or found.streamed_bytes / rate <= LONGEST_TOKEN_S:
        return
    raise SlowDisk(
        f"{what} would read {size_text(int(found.streamed_bytes))} of its {size_text(total)} from disk for every "
        f"token, {found.streamed_bytes / rate:.0f} s at {rate / 1e9:.2g} GB/s; a smaller model or a smaller quant "
        f"would work, or {size_text(int(found.streamed_bytes - LONGEST_TOKEN_S * rate))} more memory"
    )
