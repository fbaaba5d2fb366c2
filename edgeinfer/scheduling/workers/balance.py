"""Chooses the workers of the next step and the share of each, from the times of earlier steps.

In: the kind of the next step (tokens, cached tokens), then its seconds and each worker's busy time, and the allowed
number of workers. Out: an `Assignment`. Shares make all workers finish together, in parts of WHOLE; equal workers get
equal shares: small differences are noise and change nothing. Pure: numbers in, decisions out; the results of a step
never depend on them. Prefill, decode and the small passes between learn separately, because different things limit
them. Knows no threads, arrays or devices.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType

from edgeinfer.scheduling.workers.worker_pool_size import WorkerPoolSize

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
FEW_TOKENS = 8
"""Passes of at most this many tokens are bound by memory, as decoding is; larger ones by arithmetic."""
SOME_TOKENS = 64
"""Larger passes are prompts: long enough that one is informative. Smaller ones are compared by their exact length."""
PHASES = MappingProxyType(
    {"one": (2, 2.0, 16, 16), "few": (2, 2.0, 16, 16), "some": (2, 2.0, 16, 16), "many": (1, 0.5, 64, 4)}
)
"""Kinds of steps: number of steps that tell two sizes apart, total excess cost that raises an alarm, steps before the
first trial, and before the first trial after a change."""
SMALL = ("one", "few")
"""Kinds that a plan for decoding applies to."""
WINDOWS = MappingProxyType({"one": 9, "few": 9, "some": 5, "many": 1})
"""Steps of each kind whose median gives the workers' speeds."""
WARM_STEPS = 6
"""Small passes that a prompt slows down: cores clock lower for a while after it, and caches hold other data."""
LEAVE = 15
"""Small passes that run unrecorded while all is quiet: Python costs as much as a layer when its data is cold."""
DEPTH_STEP = 512
"""Cached tokens that make a noticeable difference to a step."""


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


@dataclass(frozen=True, slots=True)
class Assignment:
    """Workers in increasing order and where each one's share begins, in parts of WHOLE; the last cut is WHOLE.

    `pinned`: each on its own core. A single worker is pinned only during a trial, to reach a good core at once, and
    where the kind of core matters; otherwise the system knows better which core is idle.
    """

    workers: tuple[int, ...]
    cuts: tuple[int, ...]
    pinned: bool


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """Steps like the last one that need no decision and no record, as long as none takes more than `longest_s`."""

    n_steps: int
    longest_s: float


NO_LEAVE = SteadySteps(0, 0.0)


@dataclass(frozen=True, slots=True)
class _Phase:
    """What is known of one kind of step."""

    worker_pool: WorkerPoolSize
    speeds: WorkerSpeeds


class Balance:
    """Assignments for `n_workers`, step after step: `assign`, run the step, `record`."""

    def __init__(
        self, n_workers: int, decode_shares: Sequence[float] = (), prefill_shares: Sequence[float] = ()
    ) -> None:
        """Initial shares of the workers in small and in large passes: 0 for none, () for equal ones."""
        shares = {name: tuple(decode_shares if name in SMALL else prefill_shares) for name in PHASES}
        planned = {name: sum(share > 0 for share in found) or n_workers for name, found in shares.items()}
        sizes = candidate_sizes(n_workers, *planned.values())
        self._phases = {
            name: _Phase(
                WorkerPoolSize(sizes, *trials, first_size=planned[name]),
                WorkerSpeeds(n_workers, WINDOWS[name], shares[name]),
            )
            for name, trials in PHASES.items()
        }
        self._n_workers = self._most_workers = n_workers
        self._ranks: tuple[int, ...] = ()
        self._phase = self._phases["one"]
        self._bucket: Hashable = None
        self._n_tokens = 1
        self._n_small = WARM_STEPS  # small passes since the last large one
        self._assignment = Assignment((0,), (0, WHOLE), False)

    def limit(self, most_workers: int, ranks: tuple[int, ...] = ()) -> None:
        """Use at most this many workers (at least 1) from the next step on, lowest ranks first.

        `ranks`: of each worker; () if all are equal, so that the fastest come first.
        """
        self._most_workers = min(most_workers, self._n_workers)
        self._ranks = ranks
        for phase in self._phases.values():
            phase.worker_pool.limit(self._most_workers)

    def assign(self, n_tokens: int, n_cached: int) -> Assignment:
        """Workers for the next step, of this many tokens after this many cached ones."""
        if self._n_workers == 1:
            return self._assignment
        self._phase = self._phases[_phase_of(n_tokens)]
        length = n_tokens if n_tokens <= SOME_TOKENS else -(n_tokens - 1).bit_length()
        self._n_small = self._n_small + 1 if n_tokens <= FEW_TOKENS else 0
        self._bucket = length, (n_cached // DEPTH_STEP).bit_length(), min(self._n_small, WARM_STEPS)
        self._n_tokens = n_tokens
        size, speeds = self._phase.worker_pool.size(self._bucket), self._phase.speeds
        workers = tuple(range(size)) if size == self._n_workers else speeds.fastest(size, self._ranks)
        pinned = size > 1 or size != self._phase.worker_pool.settled_size or bool(self._ranks)
        cuts = speeds.cuts(workers)
        last = self._assignment
        if (workers, cuts, pinned) != (last.workers, last.cuts, last.pinned):
            self._assignment = Assignment(workers, cuts, pinned)
        return self._assignment

    def record(self, seconds: float, busy: Sequence[float], n_before: int = 0) -> None:
        """Note the seconds of the last assigned step, and how long each of its workers was busy.

        `n_before`: unrecorded steps before it.
        """
        if self._n_workers == 1:
            return
        worker_pool, before = self._phase.worker_pool, self._phase.worker_pool.settled_size
        assigned = self._assignment
        worker_pool.record(self._bucket, seconds / self._n_tokens, n_before)
        self._phase.speeds.record(assigned.workers, assigned.cuts, busy, worker_pool.is_steady)
        if len(assigned.workers) < before == worker_pool.settled_size and worker_pool.is_steady:
            self._phase.speeds.suspect(assigned.workers)
        if (size := worker_pool.settled_size) != before:
            for phase in self._phases.values():
                if phase is not self._phase:
                    phase.worker_pool.alert(larger=size > before)

    @property
    def leave(self) -> SteadySteps:
        """Whether the next steps may run as the last one did, unrecorded."""
        if self._n_tokens > FEW_TOKENS or self.wants_free_cores or self._phase.speeds.is_surprised:
            return NO_LEAVE
        longest_s = self._n_tokens * self._phase.worker_pool.notable_cost(self._bucket)
        return SteadySteps(LEAVE, longest_s) if longest_s else NO_LEAVE

    @property
    def wants_free_cores(self) -> bool:
        """Whether `note_free_cores` would help: some workers are left out, and should return when they can."""
        return any(phase.worker_pool.settled_size < self._most_workers for phase in self._phases.values())

    def note_free_cores(self, n_free: float) -> None:
        """Note how many of the workers' cores were recently idle, according to the system."""
        for phase in self._phases.values():
            phase.worker_pool.note_free(n_free)


def candidate_sizes(n_workers: int, *planned: int) -> tuple[int, ...]:
    """Sizes worth trying: all up to four; above that the powers of two, all, all but one, and planned ones."""
    if n_workers <= 4:
        return tuple(range(1, n_workers + 1))
    powers = {1 << exponent for exponent in range(n_workers.bit_length())}
    return tuple(sorted(size for size in powers | {n_workers - 1, n_workers, *planned} if size <= n_workers))


def _phase_of(n_tokens: int) -> str:
    if n_tokens == 1:
        return "one"
    if n_tokens <= FEW_TOKENS:
        return "few"
    return "some" if n_tokens <= SOME_TOKENS else "many"
