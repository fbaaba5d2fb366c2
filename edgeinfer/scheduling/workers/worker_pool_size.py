"""Finds the number of workers for a kind of step by trial: one size is in use, its neighbours are tried now and then.

In: the cost of each step, and the largest allowed worker pool. Out: the size for the next step. Costs are compared only
within a bucket of similar steps, and a trial only with the steps just before it, so that a growing context does not
look like a slow machine. When steps become more expensive (another program took a core), the neighbours are tried at
once: cumulative sums (Page, 1954) tell that from noise. A size that is only slightly better is tried once more before
it replaces the current one. Sizes that lose are tried ever less often; larger ones hardly at all while no core is free
for them.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from dataclasses import dataclass, field

USUAL = 1.25
"""Factor on the usual cost: a step above it adds to the sum that raises the alarm, one below subtracts from it."""
MOST_EXCESS = 0.75
"""The most a single step can add: one step alone, however slow, means little."""
BETTER = 0.97
"""Factor on the present cost that another size must stay below to be adopted."""
OBVIOUS = 0.75
"""Factor on the present cost below which another size is adopted at once."""
HOPELESS = 1.5
"""Factor on the present cost at which one step is enough to end a trial."""
CLEARLY_WORSE = 1.25
FAMILIAR = 3
"""Steps of a kind after which the usual cost is known."""
SETTLED = 16
"""Steps of a kind after which not every one must be recorded."""
WEIGHT = 1 / 8
"""Weight of a new cost in the moving average, once there are some."""
FAST_WEIGHT = 1 / 2
"""Weight of a cost far below the average, which then was never usual."""
MOST_DOUBT = 2
"""Each false alarm doubles the sum that the next one needs, at most this many times."""
FORGET_DOUBT = 256
"""Usual steps after which a false alarm is forgotten."""
LONGER, MUCH_LONGER = 2, 32
"""Factors on the interval until a size is tried again, if it was slightly and if it was clearly worse."""
LONGEST_WAIT = 2048
LONGEST_BLIND_WAIT = 48
"""For a larger size, if the number of free cores is unknown: only trials can show that a load has ended."""
BLOCKED_SHARE = 1 / 32
"""Fraction of a step that counts towards the wait for a larger worker pool while no core is free for it."""
MOST_BUCKETS = 1024
FREE = 0.8
"""Idle share of the additional cores of a larger worker pool at which they count as free,"""
TAKEN = 0.5
"""and below which they count as taken."""


@dataclass(slots=True)
class _Rival:
    """A size that is not in use: steps until it is tried, and between trials."""

    wait: float
    interval: float


@dataclass(slots=True)
class _Trial:
    """Steps with another size; if it does well, followed by steps with the size in use (`again`).

    `present`: cost of the size in use as a multiple of the usual cost: more than 1 after an alarm.
    """

    index: int
    present: float
    alarmed: bool
    costs: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    is_again: bool = False
    n_skipped: int = 0


@dataclass(slots=True)
class _Usual:
    """The moving average of a bucket's cost with the size in use."""

    cost: float
    count: int = 1


class WorkerPoolSize:
    """Chooses among increasing `sizes`, beginning with `first_size`, or with the largest.

    `trial_steps`: number of steps that tell two sizes apart. `alarm`: total excess of the last steps' cost, in usual
    steps, that raises an alarm. Trials begin after `first_wait` steps, and `wait_after_change` steps after the size has
    changed.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        trial_steps: int,
        alarm: float,
        first_wait: int,
        wait_after_change: int,
        first_size: int | None = None,
    ) -> None:
        self._sizes = sizes
        self._trial_steps = trial_steps
        self._alarm = alarm
        self._wait_after_change = wait_after_change
        self._top = len(sizes) - 1
        self._index = self._top if first_size is None else sizes.index(first_size)
        self._most = sizes[-1]
        self._unlimited = self._index  # where it would be without a limit
        self._rivals = [_Rival(first_wait, first_wait) for _ in sizes]
        self._usual: dict[Hashable, _Usual] = {}
        self._excess = 0.0  # the cumulative sum
        self._slow: list[float] = []  # costs of the steps since it was zero, as multiples of the usual
        self._doubt, self._n_usual = 0, 0  # recent false alarms; usual steps since the last slow one
        self._trial: _Trial | None = None
        self._queue: list[int] = []
        self._is_blocked = False
        self._is_blind = True

    def size(self, bucket: Hashable) -> int:
        """Workers of the next step, which is in this bucket."""
        trial = self._trial if bucket in self._usual else None
        return self._size_at(self._index if trial is None or trial.is_again else trial.index)

    @property
    def settled_size(self) -> int:
        """The size in use, apart from trials."""
        return self._size_at(self._index)

    @property
    def is_steady(self) -> bool:
        """Whether the last steps were usual: no trial, no expensive step."""
        return self._trial is None and self._excess == 0

    def notable_cost(self, bucket: Hashable) -> float:
        """The smallest cost of a step that must be recorded now; 0 if every step must be."""
        usual = self._usual.get(bucket)
        return USUAL * usual.cost if usual and usual.count >= SETTLED and self.is_steady else 0.0

    def limit(self, most: int) -> None:
        """Use no worker pool larger than `most` (at least 1) from the next step on; larger sizes are capped.

        A size that was given up because of a limit returns with a higher limit.
        """
        if most == self._most:
            return
        self._most = most
        self._top = next((index for index, size in enumerate(self._sizes) if size >= most), len(self._sizes) - 1)
        self._index = min(self._unlimited, self._top)
        self._trial, self._queue, self._excess = None, [], 0.0
        self._usual.clear()
        self._slow.clear()
        self._rivals = [_Rival(self._wait_after_change, self._wait_after_change) for _ in self._sizes]

    def note_free(self, n_free: float) -> None:
        """Note how many cores are free. When enough are free for the next larger worker pool, it is tried at once."""
        self._is_blind = False
        if self._index >= self._top:
            return
        free = n_free / (self._size_at(self._index + 1) - self._size_at(self._index))
        was_blocked, self._is_blocked = self._is_blocked, free < (FREE if self._is_blocked else TAKEN)
        if was_blocked and not self._is_blocked:
            self.alert(larger=True)

    def alert(self, larger: bool) -> None:
        """Something has changed in favour of larger or smaller worker pools: try the next one soon."""
        index = self._index + (1 if larger else -1)
        if 0 <= index <= self._top and not (larger and self._is_blocked):
            self._rivals[index] = _Rival(0, self._wait_after_change)

    def record(self, bucket: Hashable, cost: float, n_before: int = 0) -> None:
        """Note the cost of a step of `size(bucket)` workers, after `n_before` unrecorded, not notable steps."""
        usual = self._usual.get(bucket)
        if usual is None:
            while len(self._usual) >= MOST_BUCKETS:
                del self._usual[next(iter(self._usual))]
            self._usual[bucket] = _Usual(cost)
        elif self._trial is not None:
            self._judge(self._trial, cost / usual.cost / self._trial.present)
        else:
            self._n_usual += n_before
            self._compare(usual, cost)
            self._wait(n_before + 1)

    def _size_at(self, index: int) -> int:
        return min(self._sizes[index], self._most)

    @property
    def _neighbours(self) -> list[int]:
        return [index for index in (self._index - 1, self._index + 1) if 0 <= index <= self._top]

    def _compare(self, usual: _Usual, cost: float) -> None:
        """Add a step with the size in use to the average, and raise the alarm if the sum is large enough."""
        ratio = cost / usual.cost
        if usual.count >= FAMILIAR:
            self._sum_up(ratio)
            if self._excess >= self._alarm * (1 << self._doubt):
                self._queue = self._neighbours
                self._begin_next(statistics.fmean(self._slow))
                self._excess = 0.0
                self._slow.clear()
                return
        usual.count += 1
        weight = FAST_WEIGHT if ratio * USUAL < 1 else max(WEIGHT, 1 / usual.count)
        usual.cost *= 1 + weight * (min(ratio, USUAL) - 1)

    def _sum_up(self, ratio: float) -> None:
        self._excess = max(0.0, self._excess + min(ratio - USUAL, MOST_EXCESS))
        if self._excess:
            self._slow.append(ratio)
            self._n_usual = 0
            return
        self._slow.clear()
        self._n_usual += 1
        if self._n_usual >= FORGET_DOUBT:
            self._doubt, self._n_usual = max(0, self._doubt - 1), 0

    def _scale(self, factor: float) -> None:
        for usual in self._usual.values():
            usual.cost *= factor

    def _begin_next(self, present: float) -> None:
        self._trial = _Trial(self._queue.pop(0), present, alarmed=True) if self._queue else None

    def _wait(self, n_steps: int) -> None:
        """Count steps towards the neighbours' waits; begin a trial that is due."""
        if not self.is_steady:
            return
        for index in self._neighbours:
            rival = self._rivals[index]
            rival.wait -= n_steps * (BLOCKED_SHARE if index > self._index and self._is_blocked else 1)
            if rival.wait <= 0 and self._trial is None:
                self._trial = _Trial(index, 1.0, alarmed=False)

    def _judge(self, trial: _Trial, ratio: float) -> None:
        """Add a step of a trial, as a multiple of the usual cost; decide when there are enough."""
        if trial.is_again:
            trial.again.append(ratio)
            if len(trial.again) >= self._trial_steps:
                present = (1 + statistics.fmean(trial.again)) / 2  # 1: the mean of the steps before
                self._decide(trial, statistics.fmean(trial.costs), present)
            return
        if trial.n_skipped < self._trial_steps - 1 and ratio < HOPELESS:
            trial.n_skipped += 1  # with cold caches, perhaps on another core: means little
            return
        trial.costs.append(ratio)
        if len(trial.costs) < self._trial_steps and ratio < HOPELESS:
            return
        tried = statistics.fmean(trial.costs)
        if OBVIOUS < tried < BETTER:
            trial.is_again = True
        else:
            self._decide(trial, tried, 1.0)

    def _decide(self, trial: _Trial, tried: float, present: float) -> None:
        self._trial = None
        rival = self._rivals[trial.index]
        if tried < BETTER * present:
            self._doubt = 0
            self._is_blocked = self._is_blocked and trial.index < self._index
            self._index = self._unlimited = trial.index
            self._scale(tried * trial.present)
            self._rivals = [_Rival(self._wait_after_change, self._wait_after_change) for _ in self._sizes]
            self._queue = self._queue and [index for index in self._neighbours if index < trial.index]
            self._begin_next(1.0)
            return
        if trial.alarmed:
            self._doubt = min(MOST_DOUBT, self._doubt + 1)
        else:
            longest = LONGEST_BLIND_WAIT if self._is_blind and trial.index > self._index else LONGEST_WAIT
            longer = MUCH_LONGER if tried > CLEARLY_WORSE * present else LONGER
            rival.interval = min(longest, rival.interval * longer)
            rival.wait = rival.interval
        self._begin_next(trial.present)
