"""Each worker's speed at one kind of step, and the shares of a step that make all workers finish together.

In: the share each worker was given and the time it was busy with it. Out: cuts in parts of WHOLE. Equal workers get
equal shares: small differences are noise and change nothing. Knows no threads, no cores and no seconds: only ratios of
busy times count.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

WHOLE = 1 << 16
"""Parts of a step."""
WEIGHT = 1 / 8
"""Weight of a new median in the moving average, once there are some."""
RECENT_WEIGHT = 1 / 4
DEAD_BAND = 0.05
"""Shares are equal while no worker would get this much more or less than the others."""
SMALLEST_MOVE = 0.02
"""Shares stay unchanged while no worker's would change by more."""
LEAST = 1 / 32
"""Smallest fraction of an equal share, so that everyone's speed continues to be measured."""
SURPRISE = 0.15
"""A rate that differs from the speed by this share of it may mean that the speed has changed."""
SUSPICION = 1.25
"""Factor by which workers that did badly in a trial are assumed to be slower than measured."""
CLASS_WIDTH = 1.1
"""Workers whose speeds differ by less count as equally fast when some must be left out."""


class WorkerSpeeds:
    """The relative speed of each of `n_workers`: moving averages of the median over the last `window` steps.

    Nothing changes before half as many steps were recorded: a single disturbed step means nothing.
    """

    def __init__(self, n_workers: int, window: int, shares: Sequence[float] = ()) -> None:
        """`shares`: initial share of each worker, 0 for none; () for equal ones."""
        self._speeds = _first_speeds(n_workers, shares)
        self._recent = list(self._speeds)
        self._window = window
        self.is_surprised = False
        """Whether the last steps were unexpected, so that the next ones should be recorded."""
        self._counts = [0] * n_workers
        self._rates: list[deque[float]] = [deque(maxlen=window) for _ in range(n_workers)]
        self._applied: dict[tuple[int, ...], list[float]] = {}
        self._cuts: dict[tuple[int, ...], tuple[int, ...]] = {}  # of the present speeds

    def record(self, workers: Sequence[int], cuts: Sequence[int], busy: Sequence[float], steady: bool) -> None:
        """Learn from a step; one that was not `steady` shows who is slow at the moment, not who is slow in general."""
        shares = [stop - start for start, stop in pairwise(cuts)]
        if len(workers) < 2 or not all(shares) or not all(time > 0 for time in busy):
            return
        rates = [share / time for share, time in zip(shares, busy, strict=True)]
        for worker, rate in zip(workers, _scaled(rates, self._recent, workers), strict=True):
            self._recent[worker] += RECENT_WEIGHT * (rate - self._recent[worker])
        if steady:
            self._cuts.clear()
            scaled = _scaled(rates, self._speeds, workers)
            self.is_surprised = any(
                abs(rate / self._speeds[worker] - 1) > SURPRISE for worker, rate in zip(workers, scaled, strict=True)
            )
            for worker, rate in zip(workers, scaled, strict=True):
                self._rates[worker].append(rate)
            for worker in workers:
                if 2 * len(self._rates[worker]) > self._window:
                    self._counts[worker] += 1
                    weight = max(WEIGHT, 1 / self._counts[worker])
                    change = statistics.median(self._rates[worker]) - self._speeds[worker]
                    self._speeds[worker] += weight * change
                    self.is_surprised |= abs(change) > DEAD_BAND * self._speeds[worker]

    def suspect(self, workers: Sequence[int]) -> None:
        """These workers did badly in a trial alone: others come first next time, unless full steps show otherwise."""
        for worker in workers:
            self._recent[worker] /= SUSPICION

    def fastest(self, size: int, ranks: Sequence[int] = ()) -> tuple[int, ...]:
        """The `size` workers that were fastest recently, in increasing order; of equally fast ones the first.

        `ranks`: of each worker, () if all are equal; a lower rank takes precedence over any speed.
        """
        top, ranks = max(self._recent), ranks or (0,) * len(self._recent)
        order = sorted(
            range(len(self._recent)),
            key=lambda worker: (ranks[worker], _class_of(self._recent[worker] / top), worker),
        )
        return tuple(sorted(order[:size]))

    def cuts(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        """Where each worker's share begins, then WHOLE."""
        if workers not in self._cuts:
            shares = self._applied[workers] = self._wanted(workers)
            self._cuts[workers] = (0, *(round(WHOLE * end / sum(shares)) for end in accumulate(shares)))
        return self._cuts[workers]

    def _wanted(self, workers: tuple[int, ...]) -> list[float]:
        """Shares as multiples of an equal share."""
        mean = sum(self._speeds[worker] for worker in workers) / len(workers)
        wanted = [max(self._speeds[worker] / mean, LEAST) for worker in workers]
        if all(abs(share - 1) < DEAD_BAND for share in wanted):
            return [1.0] * len(workers)
        applied = self._applied.get(workers)
        if applied and all(abs(new / old - 1) < SMALLEST_MOVE for new, old in zip(wanted, applied, strict=True)):
            return applied
        return wanted


def _first_speeds(n_workers: int, shares: Sequence[float]) -> list[float]:
    """Speeds as a plan has them; workers left out count as slower than all others, until measured."""
    taken = [share for share in shares if share > 0]
    if not taken:
        return [1.0] * n_workers
    mean, least = sum(taken) / len(taken), min(taken)
    return [(share or least / CLASS_WIDTH**2) / mean for share in shares]


def _scaled(rates: Sequence[float], speeds: Sequence[float], workers: Sequence[int]) -> list[float]:
    """Rates of some workers, scaled to the sum of their speeds."""
    scale = sum(speeds[worker] for worker in workers) / sum(rates)
    return [rate * scale for rate in rates]


def _class_of(ratio: float) -> int:
    """0 for the fastest and for all that are about as fast, more for slower ones."""
    count = 0
    while ratio * CLASS_WIDTH < 1 and count < 64:
        ratio *= CLASS_WIDTH
        count += 1
    return count
