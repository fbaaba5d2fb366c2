"""A pass as the view shows it: what each device works on and for how long, and how close to the machine's limits.

In: a timeline of several devices, measured stages, or a model's work with the seconds of a whole pass; the numbers of
an answer, the machine's profile. Out: stretches of the plan strip, a `Roofline`. Equal neighbours are not merged here,
because only the drawing code knows how many fit. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from edgeinfer.app.readings.records import Phase, Reached, Roofline, StoredReading, Stretch
from edgeinfer.scheduling.cost.intensity import best_madds_s, mean_pass_work
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.placement.placement import all_on
from edgeinfer.scheduling.placement.step_time import step_time

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.offload.weight_placement import StageBytes
    from edgeinfer.engine.run.observed import StageSeconds
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.shared_lane.timeline import StepTimeline
    from edgeinfer.offload.weights import WeightReads
    from edgeinfer.scheduling.cost.work import ModelWork
    from edgeinfer.scheduling.machine.profile import Profile


def of_devices(timeline: StepTimeline) -> tuple[Stretch, ...]:
    """The stretches of several devices in the last pass."""
    began = timeline.began
    return tuple(Stretch(span.device, span.stages, span.began - began, span.ended - began) for span in timeline.spans)


def in_turn(device: str, stages: Mapping[str, float], read_shares: Mapping[str, float]) -> tuple[Stretch, ...]:
    """Stages run one after the other on one device, from the seconds of each."""
    found, now = list[Stretch](), 0.0
    for name, seconds in stages.items():
        found.append(Stretch(device, name, now, now + seconds, read_shares.get(name, 0.0)))
        now += seconds
    return tuple(found)


def kinds_of(stages: Sequence[StageSeconds]) -> tuple[tuple[str, float], ...]:
    """Seconds of a pass by what they are spent on."""
    return (
        ("products", sum(stage.products_s for stage in stages)),
        ("attention", sum(stage.attention_s for stage in stages)),
        ("others", sum(stage.others_s for stage in stages)),
    )


def shares_predicted(profile: Profile, work: ModelWork, depth: int, kv: str) -> dict[str, float]:
    """Each stage's predicted share of a pass on the cpu."""
    time = step_time(profile, work, all_on(work, CPU), Pass(1, depth), kv)
    return _shares({stage.name: each.seconds for stage, each in zip(work.stages, time.stages, strict=True)})


def shares_by_bytes(work: ModelWork) -> dict[str, float]:
    """Each stage's share of the weight bytes."""
    return _shares({stage.name: stage.shape.weight_bytes for stage in work.stages if stage.shape.weight_bytes})


def _shares(parts: Mapping[str, float]) -> dict[str, float]:
    whole = sum(parts.values()) or 1.0
    return {name: part / whole for name, part in parts.items()}


def read_shares(stages: Sequence[StageBytes]) -> dict[str, float]:
    """Share of each stage's weights that comes from disk."""
    return {each.stage: (each.read + each.some) / max(1, each.stay + each.read + each.some) for each in stages}


def stored_of(llm: LLM, reading: WeightReads, waiting_share: float | None) -> StoredReading | None:
    """What a streaming model keeps in memory and what it reads. `waiting_share`: of the time of the last answer."""
    streamed, place, stages = llm.telemetry.streamed, llm.telemetry.limits.stored, llm.telemetry.stage_bytes
    if streamed is None or place is None:
        return None
    return StoredReading(
        stay_bytes=sum(stage.stay for stage in stages),
        read_bytes=sum(stage.read for stage in stages),
        some_bytes=sum(stage.some for stage in stages),
        window_bytes=place.window_bytes + place.cache_bytes + place.record_bytes,
        n_staying=sum(not stage.read and not stage.some for stage in stages),
        n_stages=len(stages),
        token_bytes=streamed.nbytes,
        disk_bytes_s=reading.n_bytes / reading.read_s if reading.read_s else None,
        waiting_share=waiting_share,
    )


def roofline(
    work: ModelWork | None, stats: Stats | None, profile: Profile | None, device: str, kv: str, most_tokens: int
) -> Roofline:
    """The roofline of an answer. `most_tokens`: per pass in prefill; `profile`: of this machine."""
    if work is None:
        return Roofline(note=f"what a pass of this model computes only {device} knows")
    reached = () if stats is None else tuple(_reached(work, stats, kv, most_tokens))
    note = "" if reached else "nothing was answered yet"
    if device != "cpu":
        return Roofline(reached, note=note or f"the roof of {device} is not known: figures as reached")
    if profile is None:
        return Roofline(reached, note="edgeinfer probe measures the roof")
    footprint = work.weight_bytes
    return Roofline(reached, best_madds_s(work, profile.cpu), profile.cpu.read(footprint), note)


def _reached(work: ModelWork, stats: Stats, kv: str, most_tokens: int) -> list[Reached]:
    found: list[Reached] = []
    n_read = stats.n_prompt - stats.n_cached
    if stats.prefill_tok_s and n_read > 0:
        n_passes = ceil(n_read / most_tokens)
        n_before = stats.n_cached + (n_read - n_read / n_passes) / 2
        madds, n_bytes = mean_pass_work(work, n_read / n_passes, n_before, 1 / n_passes, kv)
        found.append(_point("prefill", madds, n_bytes, n_passes * stats.prefill_tok_s / n_read))
    if stats.decode_tok_s and stats.accepted_per_step:
        n_drafted = 0.0
        if stats.draft is not None and stats.draft.n_passes:
            n_drafted = stats.draft.n_proposed / stats.draft.n_passes
        n_tokens, depth = 1 + n_drafted, stats.n_prompt + stats.n_generated / 2
        madds, n_bytes = mean_pass_work(work, n_tokens, depth, n_tokens, kv)
        found.append(_point("decode", madds, n_bytes, stats.decode_tok_s / stats.accepted_per_step))
    return [each for each in found if each.bytes_s > 0]


def _point(phase: Phase, madds: float, n_bytes: float, passes_s: float) -> Reached:
    return Reached(phase, madds * passes_s, n_bytes * passes_s)
