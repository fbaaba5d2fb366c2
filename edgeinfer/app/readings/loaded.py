"""A loaded model as the readings see it: facts computed once, and the numbers of its answers.

In: an `LLM`, the numbers of its answers. Out: parts of readings. Everything that reads files is done in `of`; all else
is quick.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from edgeinfer.app.disk_reading import read_since
from edgeinfer.app.readings import passes
from edgeinfer.app.readings.passes import roofline
from edgeinfer.app.readings.records import DraftCount, DraftingReading, PlanStrip, Roofline, Source, StoredReading
from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.run.observed import StageSeconds
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.scheduling.cost.memory import MemoryNeed
    from edgeinfer.scheduling.cost.work import ModelWork
    from edgeinfer.scheduling.machine.profile import Profile

DEPTH = 512
"""Number of cached tokens in the pass whose shares are predicted."""
COST_SIZES = (1, 2, 4, 8, 16, 32, 64)
HOW_TO_MEASURE = "r measures each op"


class Loaded:
    """A model and its answers. `answered` is called by one thread, everything else by another one."""

    def __init__(self, llm: LLM, work: ModelWork | None, profile: Profile | None) -> None:
        self.llm = llm
        self.work = work
        self._profile = profile
        self._shares, self._source = _shares(llm, work, profile)
        self._read_shares = passes.read_shares(llm.telemetry.stage_bytes)
        self._stats: Stats | None = None
        self._total: dict[str, DraftCount] = {}
        self._waiting: float | None = None
        self._reading = llm.telemetry.weight_reads
        self._timed: tuple[StageSeconds, ...] = ()
        self._lock = threading.Lock()  # one measured pass at a time; readings do not take this lock

    @classmethod
    def of(cls, llm: LLM, profile: Profile | None) -> Self:
        """Compute what does not change. Takes some milliseconds and reads no weights."""
        work: ModelWork | None = None
        with suppress(EdgeInferError):
            work = llm.telemetry.work
        return cls(llm, work, profile)

    @property
    def kv_bytes_per_token(self) -> float | None:
        """KV cache bytes per token; None if the model's work is unknown."""
        if self.work is None:
            return None
        need = self.need
        return (
            self.work.kv_bytes_per_token(KV_ELEMENT_BYTES[self.llm.info.kv])
            if need is None
            else need.kv_bytes_per_token
        )

    def kv_bytes(self, n_pages: int) -> int | None:
        """Bytes of this many KV cache pages, and of as many states; None if the model's work is unknown."""
        per_token, need, limits = self.kv_bytes_per_token, self.need, self.llm.telemetry.limits
        if per_token is None:
            return None
        beside = 0
        if need is not None and limits.windows is not None:
            beside += need.window_bytes * min(n_pages, limits.windows.n_pages) // limits.windows.n_pages
        if need is not None and need.state_bytes:
            n_most = min(limits.n_pages, 2 * limits.n_sequences)  # a state per page, but perhaps fewer slots
            beside += need.state_bytes * min(n_pages, n_most) // n_most
        return round(n_pages * self.llm.telemetry.page_tokens * per_token) + beside

    @property
    def need(self) -> MemoryNeed | None:
        """The memory that the model takes, by part; None if it is unknown for the device in use."""
        return self.llm.info.need if self.llm.telemetry.device == self.llm.info.device else None

    @property
    def stats(self) -> Stats | None:
        """The numbers of the last answer."""
        return self._stats

    def answered(self, stats: Stats) -> None:
        """Record that an answer has finished."""
        if stats.draft is not None:
            total = dict(self._total)
            for name, count in stats.draft.sources.items():
                total[name] = total.get(name, DraftCount()) + DraftCount(count.proposed, count.accepted)
            self._total = total
        reading = self.llm.telemetry.weight_reads
        read, self._reading = read_since(self._reading, reading), reading
        seconds = (stats.ttft_s or 0.0) + (stats.n_generated / stats.decode_tok_s if stats.decode_tok_s else 0.0)
        self._waiting = min(1.0, read.waited_s / seconds) if seconds else None
        self._stats = stats

    def time_stages(self) -> bool:
        """Measure a pass op by op; returns whether that was possible now. Takes as long as several passes."""
        with self._lock:
            stats = self._stats
            depth = DEPTH if stats is None else stats.n_prompt + stats.n_generated
            found = self.llm.telemetry.time_stages(depth)
            if found:
                self._timed = found
            return bool(found)

    @property
    def stored(self) -> StoredReading | None:
        """Weights that do not stay in memory."""
        return passes.stored_of(self.llm, self.llm.telemetry.weight_reads, self._waiting)

    def plan(self) -> PlanStrip:
        """Where a pass of one token spends its time."""
        llm, timed = self.llm, self._timed
        telemetry = llm.telemetry
        name, device = llm.info.name, telemetry.device
        if telemetry.shared is not None and telemetry.shared.timeline.spans:
            timeline = telemetry.shared.timeline
            whole = timeline.ended - timeline.began
            stretches = passes.of_devices(timeline)
            return PlanStrip(name, device, stretches, whole, "measured", overlap=timeline.overlap)
        if timed:
            return self._measured(timed)
        pass_s = self._pass_s
        parts = {stage: share * (pass_s or 1.0) for stage, share in self._shares.items()}
        stretches = passes.in_turn(device, parts, self._read_shares)
        return PlanStrip(name, device, stretches, pass_s, self._source, stored=self.stored, note=self._note)

    def _measured(self, timed: tuple[StageSeconds, ...]) -> PlanStrip:
        """Stages as measured in a timed pass, scaled to the pass time of answers, because timing has overhead.

        If weights are read from disk, stage times are not scaled: only the pass as a whole waits for the disk.
        """
        llm, stored, computed_s = self.llm, self.stored, sum(each.seconds for each in timed)
        pass_s = self._pass_s or computed_s
        scale = 1.0 if stored is not None else pass_s / computed_s
        stages = {each.stage: scale * each.seconds for each in timed if each.seconds}
        stretches, kinds = passes.in_turn(llm.telemetry.device, stages, self._read_shares), passes.kinds_of(timed)
        note = "" if stored is None else "without waiting for the disk"
        return PlanStrip(
            llm.info.name, llm.telemetry.device, stretches, pass_s, "measured", kinds, stored=stored, note=note
        )

    def roofline(self) -> Roofline:
        """The rates of the last answer and what the machine allows."""
        llm = self.llm
        return roofline(
            self.work, self._stats, self._profile, llm.telemetry.device, llm.info.kv, llm.telemetry.limits.max_tokens
        )

    def drafting(self) -> DraftingReading:
        """Counts of drafted and accepted tokens."""
        drafts, stats = self.llm.drafts, self._stats
        report = None if stats is None else stats.draft
        sources = {} if report is None else report.sources
        costs = None if drafts is None else drafts.costs
        return DraftingReading(
            is_on=drafts is not None,
            last=_in_order({name: DraftCount(count.proposed, count.accepted) for name, count in sources.items()}),
            total=_in_order(self._total),
            accepted_per_step=None if stats is None else stats.accepted_per_step,
            single_s=None if report is None else report.single_s,
            costs=() if costs is None else tuple((size, cost) for size in COST_SIZES if (cost := costs.of_one(size))),
            time_share=None if stats is None else stats.draft_share,
        )

    @property
    def _pass_s(self) -> float | None:
        """Seconds of a pass of one token, or of a mean pass if that is unknown."""
        stats = self._stats
        if stats is None:
            return None
        if stats.plain_tok_s:
            return 1 / stats.plain_tok_s
        return stats.accepted_per_step / stats.decode_tok_s if stats.accepted_per_step and stats.decode_tok_s else None

    @property
    def _note(self) -> str:
        telemetry = self.llm.telemetry
        if self.work is None:
            return f"{telemetry.device} runs this model itself and does not report layers"
        if telemetry.shared is not None:
            return "each device's times come with the first answer"
        return HOW_TO_MEASURE if telemetry.last_step is not None else f"{telemetry.device} does not time its ops"


def _shares(llm: LLM, work: ModelWork | None, profile: Profile | None) -> tuple[Mapping[str, float], Source]:
    """Each stage's share of a pass, for use until it is measured."""
    if work is None:
        return {}, "unknown"
    if profile is not None and llm.telemetry.device == "cpu":
        return passes.shares_predicted(profile, work, DEPTH, llm.info.kv), "predicted"
    return passes.shares_by_bytes(work), "by bytes"


def _in_order(counts: Mapping[str, DraftCount]) -> tuple[tuple[str, DraftCount], ...]:
    """The draft sources that proposed anything, most accepted tokens first."""
    known = [(name, count) for name, count in counts.items() if count.proposed]
    return tuple(sorted(known, key=lambda each: (-each[1].accepted, -each[1].proposed, each[0])))
