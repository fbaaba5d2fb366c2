"""The best split of a group of matmuls over devices: HeteGen's balance, for any number of lanes.

In: each device's seconds for the whole group, and how much of the group its memory may hold. Out: the share of each
device, and the seconds. With a CPU and one accelerator that holds nothing this is HeteGen's balance, T_cpu =
max(T_transfer, T_accelerator) (Zhao et al., MLSys 2024, arXiv 2403.01164), with fixed costs counted.

The seconds of every lane are piecewise linear in its share, with a bend where memory ends and streaming begins; so is
the total share that all lanes manage in a time t. The best t is where that total reaches 1: found among the bends,
exactly. Knows neither models nor machines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

NOISE = 1e-9
"""Shares of a group that differ by less are equal."""


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
