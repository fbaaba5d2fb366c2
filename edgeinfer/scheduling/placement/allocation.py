"""Memory allocation: divides rows of equal stages among memories by time saved per byte of accelerator memory.

In: homes and attention devices of all stages, and budgets. Out: an `Allocation`: for each class of equal stages, how
many have which option in each group. Seconds fall linearly with the bytes a group holds, so taking the steepest first
is optimal for continuous shares, apart from what is fixed (homes, KV caches): the planner searches over that. If RAM is
short, rows go to what is left of accelerator memory, then to flash: first as much in each group as the disk delivers
while the group is computed anyway. Knows nothing of rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from edgeinfer.scheduling.cost.seconds import ACTIVATION_BYTES
from edgeinfer.scheduling.cost.work import ModelWork, StageShape
from edgeinfer.scheduling.placement.budgets import Budgets, Caching
from edgeinfer.scheduling.placement.fractions import Fractions, SplitOption

Places = tuple[int, int]
"""Numbers of the devices that are a stage's home and where it attends."""
LEAST_SHARE = 1e-9
LEAST_S = 1e-12
UNIQUE = -1

Step = tuple[float, SplitOption, int]
"""Seconds saved per byte, the option that saves them, and its memories as a bit mask."""


@dataclass(slots=True)
class AllocatedStages:
    """`count` stages of a class whose group `group` is split as `option` says.

    `memories`: bit mask of the accelerator memories that the option may use; UNIQUE for an option that fills one up.
    """

    shape: StageShape
    places: Places
    group: int
    count: int
    option: SplitOption
    n_bytes: float
    memories: int = 0


@dataclass(slots=True)
class Allocation:
    """Predicted seconds of a pass, and its pieces by class: shape (by identity) and places."""

    seconds: float
    pieces: dict[tuple[int, Places], list[AllocatedStages]] = field(default_factory=dict)
    flash_bytes: float = 0.0
    ram_share_bytes: float = 0.0


class Allocator:
    """Computes allocations on a machine for one kind of pass."""

    def __init__(self, work: ModelWork, fractions: Fractions, budgets: Budgets, caching: Caching) -> None:
        self._work, self._fractions, self._caching = work, fractions, caching
        names = fractions.names
        self._ram_weight_bytes = budgets.ram_weight_bytes
        self._rooms = [budgets.ram_bytes, *(budgets.vram_bytes.get(name, 0.0) for name in names[1:])]
        self._shapes = {id(stage.shape): stage.shape for stage in work.stages}
        self._chain = [id(stage.shape) for stage in work.stages]
        self._cache_bytes = {key: caching.stage_bytes(shape) for key, shape in self._shapes.items()}
        self._stage_s: dict[tuple[int, Places], float] = {}
        self._move_s: dict[tuple[int, int], float] = {}
        self._steps: dict[tuple[int, int, int, int, int], Step | None] = {}

    def allocate(self, places: Sequence[Places], settled: bool = False) -> Allocation | None:
        """The best allocation for these places; None if it does not fit.

        `settled`: rows that stream at no cost are held instead where memory is left.
        """
        counts: dict[tuple[int, Places], int] = {}
        for key in zip(self._chain, places, strict=True):
            counts[key] = counts.get(key, 0) + 1
        rooms = list(self._rooms)
        for (shape, (_, attention)), count in counts.items():
            rooms[attention] -= count * self._cache_bytes[shape]
        if min(rooms) < 0:
            return None
        rooms[0] = min(rooms[0], self._ram_weight_bytes)
        round_ = _Round(self._fractions, rooms, self._steps)
        fixed_s = self._moves_s(places)
        for key, count in counts.items():
            fixed_s += count * self._fixed_s(key)
            if not round_.add(self._shapes[key[0]], key[1], count):
                return None
        if not round_.share_out():
            return None
        if settled:
            round_.hold_streamed()
        return self._total(round_, fixed_s, places)

    def _total(self, round_: _Round, fixed_s: float, places: Sequence[Places]) -> Allocation:
        used = {device for each in places for device in each}
        found = Allocation(fixed_s)
        for piece in round_.pieces:
            option = piece.option
            found.pieces.setdefault((id(piece.shape), piece.places), []).append(piece)
            found.seconds += piece.count * option.seconds
            found.flash_bytes += piece.count * sum(option.flash) * piece.n_bytes
            found.ram_share_bytes += piece.count * (option.ram + sum(option.flash)) * piece.n_bytes
            shares = zip(option.own, option.streamed, option.flash, strict=True)
            used.update(device for device, each in enumerate(shares) if any(each))
        names = self._fractions.names
        homes = {names[home] for home, _ in places}
        found.seconds += self._fractions.costs.fixed_s([names[device] for device in used], homes)
        return found

    def _fixed_s(self, key: tuple[int, Places]) -> float:
        if key not in self._stage_s:
            shape, (home, attention) = key
            self._stage_s[key] = self._fractions.stage_s(self._shapes[shape], home, attention)
        return self._stage_s[key]

    def _moves_s(self, places: Sequence[Places]) -> float:
        seconds = 0.0
        costs, names = self._fractions.costs, self._fractions.names
        n_bytes = costs.step.n_rows * self._work.width * ACTIVATION_BYTES
        for (home, _), (after, _) in pairwise(places):
            if home != after:
                if (home, after) not in self._move_s:
                    self._move_s[home, after] = costs.move_s(names[home], names[after], n_bytes)
                seconds += self._move_s[home, after]
        return seconds


class _Round:
    """One allocation in progress: pieces, and what is left of each memory."""

    def __init__(
        self, fractions: Fractions, rooms: list[float], steps: dict[tuple[int, int, int, int, int], Step | None]
    ) -> None:
        self.pieces: list[AllocatedStages] = []
        self._fractions, self._rooms, self._steps = fractions, rooms, steps
        self._open = sum(1 << device for device in range(1, len(rooms)) if rooms[device] > 0)
        self._heap: list[tuple[float, int, AllocatedStages, SplitOption, int]] = []
        self._n_pushed = 0

    def add(self, shape: StageShape, places: Places, count: int) -> bool:
        """Add stages whose groups hold nothing yet; False if no device can compute them."""
        for group, n_bytes in enumerate(self._fractions.group_bytes(shape)):
            memories = 0
            option = self._fractions.option(shape, group, places[0], 0)
            if option is None:
                memories = self._open
                option = self._fractions.option(shape, group, places[0], memories)
            if option is None:
                return False
            piece = AllocatedStages(shape, places, group, count, option, n_bytes, memories)
            self.pieces.append(piece)
            if memories and not self._take(piece, option):
                return False
            self._push(piece)
        return True

    def share_out(self) -> bool:
        """Give memory to the pieces that save the most first; False if the rest does not fit into RAM and flash."""
        while self._heap and self._open:
            _, _, piece, option, memories = heapq.heappop(self._heap)
            if self._blocked(piece, option):
                self._push(piece)
            else:
                self._upgrade(piece, option, memories)
        if self._missing() > 0:
            self.hold_streamed()
        missing = self._missing()
        if missing > 0 and self._fractions.disk_bytes_s and not self._fractions.allowed.flash_last:
            self._into_accelerators(missing - sum(self._for_nothing()), 1 / self._fractions.disk_bytes_s)
            missing = self._missing()
            return missing <= 0 or self._to_flash(missing)
        if missing > 0:
            missing = self._into_accelerators(missing, inf)
        return missing <= 0 or self._to_flash(missing)

    def _missing(self) -> float:
        """Bytes by which the pieces exceed the available RAM."""
        return sum(piece.count * piece.option.ram * piece.n_bytes for piece in self.pieces) - self._rooms[0]

    def _take(self, piece: AllocatedStages, option: SplitOption) -> bool:
        """Take the memory of an option that has no alternative."""
        for device in range(1, len(self._rooms)):
            self._rooms[device] -= piece.count * option.own[device] * piece.n_bytes
        return min(self._rooms) >= 0

    def _push(self, piece: AllocatedStages) -> None:
        """Queue the best use that a piece has for more memory."""
        if piece.memories == UNIQUE:
            step = self._step(piece)
        else:
            key = (id(piece.shape), piece.group, piece.places[0], piece.memories, self._open)
            if key not in self._steps:
                self._steps[key] = self._step(piece)
            step = self._steps[key]
        if step is not None:
            self._n_pushed += 1
            heapq.heappush(self._heap, (-step[0], self._n_pushed, piece, step[1], step[2]))

    def _step(self, piece: AllocatedStages) -> Step | None:
        now, best = piece.option, None
        held = sum(now.own[1:])
        for memories in range(2, 1 << len(self._rooms), 2):
            option = self._fractions.option(piece.shape, piece.group, piece.places[0], memories)
            if option is None or now.seconds - option.seconds <= LEAST_S:
                continue
            if not self._blocked(piece, option):
                taken = max(sum(option.own[1:]) - held, LEAST_SHARE)
                ratio = (now.seconds - option.seconds) / (taken * piece.n_bytes)
                if best is None or ratio > best[0]:
                    best = (ratio, option, memories)
        return best

    def _blocked(self, piece: AllocatedStages, option: SplitOption) -> bool:
        """Whether an option takes more of a memory that is full."""
        now = piece.option.own
        return any(
            not self._open >> device & 1 and option.own[device] > now[device] + LEAST_SHARE
            for device in range(1, len(now))
        )

    def _upgrade(self, piece: AllocatedStages, option: SplitOption, memories: int) -> None:
        """Give an option to as many stages as it fits for, and to one more in part."""
        before, before_memories = piece.option, piece.memories
        takes = [(new - old) * piece.n_bytes for new, old in zip(option.own, before.own, strict=True)]
        n_fit, scarce = piece.count, 0
        for device in range(1, len(takes)):
            if takes[device] > 0 and int(self._rooms[device] / takes[device]) < n_fit:
                n_fit, scarce = int(self._rooms[device] / takes[device]), device
        n_left = piece.count - n_fit
        if n_fit:
            self._become(piece, option, n_fit)
            piece.memories = memories
        if n_left == 0:
            self._push(piece)
            return
        rest = piece if not n_fit else self._split_off(piece, before, n_left, before_memories)
        held = [inf] + [
            before.own[device] + self._rooms[device] / piece.n_bytes if memories >> device & 1 else before.own[device]
            for device in range(1, len(takes))
        ]
        part = self._fractions.split(piece.shape, piece.group, piece.places[0], held)
        self._open &= ~(1 << scarce)
        if n_fit:
            self._push(piece)
        if part is not None and part.seconds < before.seconds:
            one = rest if n_left == 1 else self._split_off(rest, before, 1, UNIQUE)
            if n_left > 1:
                rest.count = n_left - 1
            self._become(one, part, 1)
            one.memories = UNIQUE
            self._push(one)
            if one is rest:
                return
        self._push(rest)

    def _split_off(self, piece: AllocatedStages, option: SplitOption, count: int, memories: int) -> AllocatedStages:
        other = AllocatedStages(piece.shape, piece.places, piece.group, count, option, piece.n_bytes, memories)
        self.pieces.append(other)
        return other

    def _become(self, piece: AllocatedStages, option: SplitOption, count: int) -> None:
        for device in range(1, len(self._rooms)):
            self._rooms[device] -= count * (option.own[device] - piece.option.own[device]) * piece.n_bytes
        piece.option, piece.count = option, count

    def _for_nothing(self) -> list[float]:
        """Bytes of each piece in RAM that the disk delivers while the group is computed anyway."""
        rate = self._fractions.disk_bytes_s
        return [
            piece.count * min(piece.option.ram * piece.n_bytes, piece.option.seconds * rate) for piece in self.pieces
        ]

    def _into_accelerators(self, missing: float, most: float) -> float:
        """Move rows from RAM to free accelerator memory, where it costs least; returns the bytes still missing.

        `most`: most seconds per byte that this may cost.
        """
        ways: list[tuple[float, int, AllocatedStages, int]] = []
        for piece in self.pieces:
            lanes = self._fractions.lanes(piece.shape, piece.group, piece.places[0])
            for device in range(1, len(lanes)):
                share = min(piece.option.ram, self._rooms[device] / piece.n_bytes) if piece.n_bytes else 0.0
                if share > LEAST_SHARE and lanes[device].fixed_s < inf:
                    slower = self._moved(piece, device, share).seconds - piece.option.seconds
                    ways.append((slower / (share * piece.n_bytes), len(ways), piece, device))
        for ratio, _, piece, device in sorted(ways, key=lambda way: way[:2]):
            if ratio > most or missing <= 0:
                break
            missing -= self._move_into(piece, device, missing)
        return missing if missing > 1 else 0.0

    def _move_into(self, piece: AllocatedStages, device: int, wanted: float) -> float:
        """Move a piece's rows from RAM to a device: whole stages first, then one in part; returns the bytes moved."""
        each = piece.option.ram * piece.n_bytes
        limit = min(wanted, self._rooms[device])
        if each <= LEAST_SHARE * piece.n_bytes or limit <= 0:
            return 0.0
        n_whole, before = min(piece.count, int(limit / each)), piece.option
        rest = piece.count - n_whole
        part = min(limit - n_whole * each, each) / piece.n_bytes
        if n_whole:
            one = piece if not rest else self._split_off(piece, before, n_whole, UNIQUE)
            self._become(one, self._moved(piece, device, before.ram), n_whole)
        if not rest or part <= LEAST_SHARE:
            piece.count = rest or piece.count
            return n_whole * each
        one = piece if rest == 1 else self._split_off(piece, before, 1, UNIQUE)
        self._become(one, self._moved(piece, device, part), 1)
        piece.count = max(1, rest - 1)
        return n_whole * each + part * piece.n_bytes

    def _moved(self, piece: AllocatedStages, device: int, share: float) -> SplitOption:
        """A piece's option with a share of the group moved from RAM to a device: streamed rows first, then CPU rows."""
        own, streamed = list(piece.option.own), list(piece.option.streamed)
        own[device] += share
        for other in (device, *range(1, len(own))):
            part = min(share, streamed[other])
            streamed[other] -= part
            share -= part
        own[0] = max(0.0, own[0] - share)
        lanes = self._fractions.lanes(piece.shape, piece.group, piece.places[0])
        return self._fractions.timed(lanes, piece.n_bytes, tuple(own), tuple(streamed), piece.option.flash)

    def _to_flash(self, missing: float) -> bool:
        """Move rows from RAM to flash, computed where they were; False if there are not enough, or no disk."""
        most = [piece.count * piece.option.ram * piece.n_bytes for piece in self.pieces]
        if not self._fractions.disk_bytes_s or sum(most) < missing:
            return False
        for_nothing = self._for_nothing()
        part = min(1.0, missing / max(1.0, sum(for_nothing)))
        rest = max(0.0, missing - sum(for_nothing)) / max(1.0, sum(most) - sum(for_nothing))
        for piece, bytes_, free in zip(self.pieces, most, for_nothing, strict=True):
            flash = part * free + rest * (bytes_ - free)
            if flash > LEAST_SHARE * bytes_:
                piece.option = self._from_flash(piece, min(1.0, flash / bytes_))
        return True

    def _from_flash(self, piece: AllocatedStages, part: float) -> SplitOption:
        """A piece's option with a part of all its rows in RAM moved to flash."""
        own, streamed = piece.option.own, piece.option.streamed
        flash = (own[0] * part, *(share * part for share in streamed[1:]))
        kept = tuple(share * (1 - part) for share in streamed)
        lanes = self._fractions.lanes(piece.shape, piece.group, piece.places[0])
        return self._fractions.timed(lanes, piece.n_bytes, (own[0] * (1 - part), *own[1:]), kept, flash)

    def hold_streamed(self) -> None:
        """Hold streamed rows where there is memory left for them."""
        for piece in self.pieces:
            for device in range(1, len(self._rooms)):
                share = min(piece.option.streamed[device], self._rooms[device] / (piece.count * piece.n_bytes))
                if share > LEAST_SHARE:
                    own, streamed = list(piece.option.own), list(piece.option.streamed)
                    own[device] += share
                    streamed[device] -= share
                    lanes = self._fractions.lanes(piece.shape, piece.group, piece.places[0])
                    shares = (tuple(own), tuple(streamed), piece.option.flash)
                    self._become(piece, self._fractions.timed(lanes, piece.n_bytes, *shares), piece.count)
