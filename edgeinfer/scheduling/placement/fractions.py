"""Seconds of a model's groups with rows split over devices, for every home, each with the best split.

In: the costs of a pass and what is allowed (streaming, which devices compute, a share of RAM rows read from flash).
Out: a `SplitOption` (shares of a group, seconds) for a group whose weights may be in the memories of some accelerators.
Seconds are those of `step_time`, for shares instead of rows: all matmuls of a group are split alike.

The split is for any number of lanes; with a CPU and one accelerator that holds nothing it is HeteGen's balance, T_cpu =
max(T_transfer, T_accelerator) (Zhao et al., MLSys 2024, arXiv 2403.01164), with fixed costs counted. The seconds of
every lane are piecewise linear in its share, with a bend where memory ends and streaming begins; so is the total share
that all lanes manage in a time t. The best t is where that total reaches 1: found among the bends, exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from edgeinfer.scheduling.cost.seconds import ACTIVATION_BYTES
from edgeinfer.scheduling.cost.work import StageShape
from edgeinfer.scheduling.placement.placement import granule
from edgeinfer.scheduling.placement.step_time import PassCosts, n_computed, product_groups

NOISE = 1e-9
"""Shares of a group that differ by less are equal."""
WORTH_GRANULES = 4
"""Smallest number of granules streamed to save memory: rounding fewer to rows could make streaming cost time."""
Shares = tuple[float, ...]
"""Shares of a group, by the device's number in the profile."""


@dataclass(frozen=True, slots=True)
class DeviceSeconds:
    """Seconds of a device: `fixed_s` if it has any rows; for the whole group, to compute, to send results, to stream.

    `stream_s` is inf where rows cannot be streamed; `latency_s` is the fixed cost of streaming.
    """

    fixed_s: float
    compute_s: float
    result_s: float = 0.0
    stream_s: float = inf
    latency_s: float = 0.0

    def share(self, seconds: float, held: float) -> float:
        """Share of the group that the device manages in a time, with at most the share `held` in its memory."""
        left = seconds - self.fixed_s
        if left <= 0:
            return 0.0
        computed = _over(left, self.compute_s + self.result_s)
        if computed <= held or self.stream_s == inf:
            return min(computed, held)
        arrived = _over(left - self.latency_s + self.stream_s * held, self.result_s + self.stream_s)
        return max(held, min(computed, arrived))

    def bends(self, held: float) -> list[float]:
        """Times at which the line of `share` bends."""
        places = [self.fixed_s]
        if held < inf:
            places.append(self.fixed_s + held * (self.compute_s + self.result_s))
            if self.stream_s < inf:
                places.append(self.fixed_s + self.latency_s + self.result_s * held)
                if self.stream_s != self.compute_s:  # where arriving rows meet the limit of computing
                    share = (self.latency_s - self.stream_s * held) / (self.compute_s - self.stream_s)
                    places.append(self.fixed_s + share * (self.compute_s + self.result_s))
        return places

    def seconds(self, own: float, streamed: float) -> float:
        """Seconds of the lane with these shares of the group, held and streamed."""
        share = own + streamed
        if share <= 0:
            return 0.0
        arriving = self.latency_s + streamed * self.stream_s if streamed > 0 else 0.0
        return self.fixed_s + share * self.result_s + max(share * self.compute_s, arriving)

    def for_nothing(self, share: float) -> float:
        """How much of the device's share can be streamed without making the lane longer."""
        if self.stream_s == inf:
            return 0.0
        return min(share, max(0.0, _over(share * self.compute_s - self.latency_s, self.stream_s)))


def _over(amount: float, rate: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / rate if rate > 0 else inf


def balance(lanes: Sequence[DeviceSeconds], held: Sequence[float]) -> tuple[float, tuple[float, ...]] | None:
    """The shortest time in which the lanes manage the group, and each one's share; None if they never do."""
    places = sorted(
        {place for lane, most in zip(lanes, held, strict=True) for place in lane.bends(most) if 0 < place < inf}
    )
    number = bisect_left(places, 1.0, key=lambda place: _managed(lanes, held, place))
    before = places[number - 1] if number else 0.0
    managed_before = _managed(lanes, held, before)
    if number < len(places):
        after = places[number]
        return _between(lanes, held, (before, managed_before), (after, _managed(lanes, held, after)))
    beyond = 2 * before + 1.0
    managed = _managed(lanes, held, beyond)
    if managed <= managed_before + NOISE:
        return None
    if managed == inf:
        return _between(lanes, held, (before, managed_before), (beyond, managed))
    beyond = before + (1 - managed_before) * (beyond - before) / (managed - managed_before)
    return _settled(lanes, held, beyond)


def _managed(lanes: Sequence[DeviceSeconds], held: Sequence[float], seconds: float) -> float:
    total = 0.0
    for lane, most in zip(lanes, held, strict=True):
        if seconds > lane.fixed_s:
            total += lane.share(seconds, most)
    return total


def _between(
    lanes: Sequence[DeviceSeconds], held: Sequence[float], low: tuple[float, float], high: tuple[float, float]
) -> tuple[float, tuple[float, ...]]:
    if high[1] == inf or high[1] <= low[1]:
        return _settled(lanes, held, high[0])
    part = (1 - low[1]) / (high[1] - low[1])
    return _settled(lanes, held, low[0] + part * (high[0] - low[0]))


def _settled(lanes: Sequence[DeviceSeconds], held: Sequence[float], seconds: float) -> tuple[float, tuple[float, ...]]:
    shares = [lane.share(seconds, most) for lane, most in zip(lanes, held, strict=True)]
    shares = [min(share, 1.0) for share in shares]
    total = sum(shares)
    return seconds, tuple(share / total for share in shares)


@dataclass(frozen=True, slots=True)
class SplitOption:
    """A group split over devices: shares held where they are computed, streamed there, and read from flash."""

    seconds: float
    own: Shares
    streamed: Shares
    flash: Shares

    @property
    def ram(self) -> float:
        """Share of the group that is in the machine's memory."""
        return self.own[0] + sum(self.streamed)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What lanes may do: stream rows, use the CPU beside accelerators, use several accelerators.

    `without`: numbers of devices that have lanes only at home. `filled`: lanes take one matmul of a group after
    another, so that all but the home's have a single launch. `flash_last`: rows go to flash only when all other memory
    is full. `flash_share`: share of the rows computed by the CPU that comes from disk in every pass.
    """

    streaming: bool = True
    cpu_computes: bool = True
    across: bool = True
    without: tuple[int, ...] = ()
    filled: bool = False
    flash_last: bool = False
    flash_share: float = 0.0


class Fractions:
    """Lanes and options of a pass, each computed once."""

    def __init__(self, costs: PassCosts, allowed: Allowed) -> None:
        self.costs, self.allowed = costs, allowed
        self.names = [rates.name for rates in costs.profile.devices]
        disk = costs.profile.disk
        self.disk_bytes_s = disk.best_bytes_s if disk is not None else 0.0
        self._lanes: dict[tuple[int, int, int], tuple[DeviceSeconds, ...]] = {}
        self._options: dict[tuple[int, int, int, int], SplitOption | None] = {}
        self._least: dict[tuple[int, int], float] = {}
        self._bytes: dict[int, tuple[float, ...]] = {}
        self._kept: list[StageShape] = []  # shapes are identified by id, so they must stay alive

    def group_bytes(self, shape: StageShape) -> tuple[float, ...]:
        """Bytes of the weights of each group."""
        if id(shape) not in self._bytes:
            groups = [shape.products[first:stop] for first, stop in product_groups(shape)]
            self._bytes[id(shape)] = tuple(sum(product.n_bytes for product in group) for group in groups)
            self._kept.append(shape)
        return self._bytes[id(shape)]

    def lanes(self, shape: StageShape, group: int, home: int) -> tuple[DeviceSeconds, ...]:
        """Seconds of each device for a group of a stage with that home."""
        key = (id(shape), group, home)
        if key not in self._lanes:
            self._kept.append(shape)
            self._lanes[key] = tuple(self._lane(shape, group, home, device) for device in range(len(self.names)))
        return self._lanes[key]

    def option(self, shape: StageShape, group: int, home: int, memories: int) -> SplitOption | None:
        """The best split with any share in the accelerator memories in the bit mask, and none in others.

        Rows that can be streamed without making a lane longer are, so that memory is not wasted. None: no lane may
        compute.
        """
        key = (id(shape), group, home, memories)
        if key not in self._options:
            held = [inf if device == 0 or memories >> device & 1 else 0.0 for device in range(len(self.names))]
            self._options[key] = self.split(shape, group, home, held)
        return self._options[key]

    def split(self, shape: StageShape, group: int, home: int, held: list[float]) -> SplitOption | None:
        """The best split with at most these shares held by the devices."""
        lanes = self.lanes(shape, group, home)
        balanced = balance(lanes, held)
        if balanced is None:
            return None
        own, streamed = [0.0] * len(lanes), [0.0] * len(lanes)
        least = self._least_streamed(shape, group)
        for device, (lane, share) in enumerate(zip(lanes, balanced[1], strict=True)):
            if share > 0:
                free = lane.for_nothing(share) if device else 0.0
                beyond = share - held[device] if share > held[device] + NOISE else 0.0
                streamed[device] = max(beyond, free if free > least else 0.0)
                own[device] = share - streamed[device]
        return self.timed(lanes, self.group_bytes(shape)[group], tuple(own), tuple(streamed), (0.0,) * len(lanes))

    def _least_streamed(self, shape: StageShape, group: int) -> float:
        """Share of a group below which nothing is streamed to save memory."""
        key = (id(shape), group)
        if key not in self._least:
            first, stop = product_groups(shape)[group]
            sizes = [each.n_rows for each in shape.products[first:stop]]
            self._least[key] = max(WORTH_GRANULES * granule(n_rows) / n_rows for n_rows in sizes)
        return self._least[key]

    def timed(
        self, lanes: tuple[DeviceSeconds, ...], n_bytes: float, own: Shares, streamed: Shares, flash: Shares
    ) -> SplitOption:
        """The option of given shares of a group of this many bytes. Flash rows of an accelerator come over its link."""
        longest = 0.0
        n_flash = sum(flash)
        disk_s = n_flash * n_bytes / self.disk_bytes_s if n_flash > 0 else 0.0
        for device, lane in enumerate(lanes):
            held, arriving = own[device], streamed[device] + flash[device]
            shares = (held, arriving) if device else (held + arriving, 0.0)
            longest = max(longest, lane.seconds(*shares))
            if flash[device] > 0:
                longest = max(longest, lane.fixed_s + (held + arriving) * lane.result_s + disk_s)
        return SplitOption(longest, own, streamed, flash)

    def stage_s(self, shape: StageShape, home: int, attention: int) -> float:
        """Seconds of a stage without its groups."""
        seconds = self.costs.others_s(shape, self.names[home])
        if shape.attention is not None:
            seconds += sum(self.costs.attention(shape.attention, self.names[home], self.names[attention]))
        return seconds

    def _may_help(self, device: int, home: int) -> bool:
        allowed = self.allowed
        if device in allowed.without or (device == 0 and not allowed.cpu_computes):
            return False
        return allowed.across or device == 0 or home == 0

    def _lane(self, shape: StageShape, group: int, home: int, device: int) -> DeviceSeconds:
        allowed, costs = self.allowed, self.costs
        if device != home and not self._may_help(device, home):
            return DeviceSeconds(inf, 0.0)
        first, stop = product_groups(shape)[group]
        products = shape.products[first:stop]
        n_tokens, here, there = n_computed(shape, costs.step), self.names[device], self.names[home]
        compute_s = sum(costs.devices[here].product(product, product.n_rows, n_tokens).total for product in products)
        n_launches = 1 if allowed.filled and device != home else len(products)
        fixed_s = n_launches * costs.devices[here].rates.op_s
        result_s = 0.0
        if device != home and n_tokens:
            n_bytes = n_tokens * ACTIVATION_BYTES
            latency_s = costs.move_s(here, there, 1e-9)
            result_s = costs.move_s(here, there, sum(product.n_rows for product in products) * n_bytes) - latency_s
            fixed_s += latency_s + costs.move_s(there, here, products[0].columns * n_bytes)
        n_bytes_held = self.group_bytes(shape)[group]
        if device == 0:
            flash_s = allowed.flash_share * n_bytes_held / self.disk_bytes_s if allowed.flash_share else 0.0
            return DeviceSeconds(fixed_s, max(compute_s, flash_s), result_s)
        if not allowed.streaming:
            return DeviceSeconds(fixed_s, compute_s, result_s)
        latency_s = costs.stream_s(here, 1e-9)
        stream_s = costs.stream_s(here, n_bytes_held) - latency_s
        return DeviceSeconds(fixed_s, compute_s, result_s, stream_s, latency_s)
