"""Records of the live view of the machine: plain values, None where a value is unknown.

In and out: frozen records. Knows neither the engine nor the terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Source = Literal["measured", "predicted", "by bytes", "unknown"]
"""Origin of the times in a plan.

Measured op by op or device by device; a measured total, divided as the machine's profile predicts or by the bytes that
are read; or not known at all.
"""
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A device working on `label` (a stage, or "first to last") in a part of a pass, in seconds from its start.

    `read_share`: share of its weights that every pass reads from disk.
    """

    device: str
    label: str
    began_s: float
    ended_s: float
    read_share: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class StoredReading:
    """Weights of which only some stay in memory.

    `n_staying` of `n_stages` stages stay whole. `disk_bytes_s` is the mean over all reads since the model was loaded,
    `waiting_share` the share of the last answer's time.
    """

    stay_bytes: int
    read_bytes: int
    some_bytes: int
    window_bytes: int
    n_staying: int
    n_stages: int
    token_bytes: float
    disk_bytes_s: float | None
    waiting_share: float | None


@dataclass(frozen=True, slots=True)
class PlanStrip:
    """Where a pass of one token spends its time; with several devices the last pass, whatever it contained.

    pass_s   seconds as measured in answers, if there were any
    kinds    seconds by what they are spent on; () if only a measured pass would tell
    overlap  share of the less busy device's time in which another device worked too; None for one device
    note     what the reader should know, or could do to learn more; "" for nothing
    """

    model: str | None = None
    device: str | None = None
    stretches: tuple[Stretch, ...] = ()
    pass_s: float | None = None
    source: Source = "unknown"
    kinds: tuple[tuple[str, float], ...] = ()
    overlap: float | None = None
    stored: StoredReading | None = None
    note: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that take part, in order of their first stretch."""
        return tuple(dict.fromkeys(stretch.device for stretch in self.stretches))


@dataclass(frozen=True, slots=True)
class Reached:
    """Rates in the passes of the last answer: multiply-adds per second, and bytes of weights and cache per second."""

    phase: Phase
    madds_s: float
    bytes_s: float

    @property
    def intensity(self) -> float:
        """Multiply-adds per byte read."""
        return self.madds_s / self.bytes_s


@dataclass(frozen=True, slots=True)
class Roofline:
    """What was reached and what the machine allows: the lesser of `madds_s` and intensity times `bytes_s`.

    The last two come from the machine's profile, for the model's formats and size; None without a profile.
    """

    reached: tuple[Reached, ...] = ()
    madds_s: float | None = None
    bytes_s: float | None = None
    note: str = ""

    def roof(self, intensity: float) -> float | None:
        """The highest possible rate of multiply-adds per second."""
        return None if self.madds_s is None or self.bytes_s is None else min(self.madds_s, intensity * self.bytes_s)


@dataclass(frozen=True, slots=True)
class CoreReading:
    """A core, or a worker that may move between cores (`is_worker`).

    share  its share of the last step, None if it took no part
    speed  speed of its work in that step; the fastest one is 1
    busy   share of the time since the last reading in which it was busy, with any process
    """

    number: int
    kind: str = ""
    is_worker: bool = False
    share: float | None = None
    speed: float | None = None
    busy: float | None = None
    hz: float | None = None


@dataclass(frozen=True, slots=True)
class Cores:
    """All cores this process may use. `n_working`: how many of `n_workers` took part in the last step."""

    cores: tuple[CoreReading, ...] = ()
    n_working: int | None = None
    n_workers: int | None = None
    step_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory in bytes, by the names of `app.plans.fit`; `stored`: as in the plan.

    `program_bytes`: memory of this process besides weights, used KV cache and buffers.
    """

    process_bytes: int | None = None
    available_bytes: int | None = None
    total_bytes: int | None = None
    weight_bytes: int | None = None
    kv_used_bytes: int | None = None
    kv_bytes: int | None = None
    n_kv_tokens: int | None = None
    n_kv_most: int | None = None
    stored: StoredReading | None = None
    buffer_bytes: int | None = None
    program_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DraftCount:
    """Drafted tokens, and those of them that the model accepted."""

    proposed: int = 0
    accepted: int = 0

    def __add__(self, other: DraftCount) -> DraftCount:
        return DraftCount(self.proposed + other.proposed, self.accepted + other.accepted)

    @property
    def share(self) -> float | None:
        return self.accepted / self.proposed if self.proposed else None


@dataclass(frozen=True, slots=True)
class DraftingReading:
    """Acceptance by drafter, for the last answer and in total since the model was loaded.

    costs       (tokens in a pass, its cost relative to a pass of one token)
    time_share  share of the last answer's time that drafting took; None if unknown
    """

    is_on: bool = False
    last: tuple[tuple[str, DraftCount], ...] = ()
    total: tuple[tuple[str, DraftCount], ...] = ()
    accepted_per_step: float | None = None
    single_s: float | None = None
    costs: tuple[tuple[int, float], ...] = ()
    time_share: float | None = None


@dataclass(frozen=True, slots=True)
class Energy:
    """Power used by computing, and the governor's limits. `watts`: of all CPU packages, including other processes."""

    joules_per_token: float | None = None
    watts: float | None = None
    mode: str | None = None
    policy: str | None = None
    plugged_in: bool | None = None
    battery_percent: float | None = None
    temperature_c: float | None = None
    high_c: float | None = None
