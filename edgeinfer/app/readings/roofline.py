"""How much the passes computed and read, and what the machine allows of both.

In: a model's work, the numbers of an answer, the machine's profile. Out: a `Roofline`. Measures nothing.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from edgeinfer.app.readings.records import Phase, Reached, Roofline
from edgeinfer.scheduling.cost.seconds import KV_ELEMENT_BYTES

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.scheduling.cost.work import ModelWork
    from edgeinfer.scheduling.machine.profile import Profile


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
    return Roofline(reached, _best(work, profile), profile.cpu.read(footprint), note)


def _reached(work: ModelWork, stats: Stats, kv: str, most_tokens: int) -> list[Reached]:
    found: list[Reached] = []
    n_read = stats.n_prompt - stats.n_cached
    if stats.prefill_tok_s and n_read > 0:
        n_passes = ceil(n_read / most_tokens)
        madds, n_bytes = pass_work(work, n_read / n_passes, stats.n_cached + n_read / 2, 1.0, kv)
        found.append(_point("prefill", madds, n_bytes, n_passes * stats.prefill_tok_s / n_read))
    if stats.decode_tok_s and stats.accepted_per_step:
        n_drafted = 0.0
        if stats.draft is not None and stats.draft.n_passes:
            n_drafted = sum(count.proposed for count in stats.draft.sources.values()) / stats.draft.n_passes
        n_tokens, depth = 1 + n_drafted, stats.n_prompt + stats.n_generated / 2
        madds, n_bytes = pass_work(work, n_tokens, depth, n_tokens, kv)
        found.append(_point("decode", madds, n_bytes, stats.decode_tok_s / stats.accepted_per_step))
    return [each for each in found if each.bytes_s > 0]


def _point(phase: Phase, madds: float, n_bytes: float, passes_s: float) -> Reached:
    return Reached(phase, madds * passes_s, n_bytes * passes_s)


def pass_work(work: ModelWork, n_tokens: float, n_cached: float, n_outputs: float, kv: str) -> tuple[float, float]:
    """Multiply-adds, and bytes of weights and cache, of a mean pass over `n_tokens` with `n_cached` before them."""
    madds = n_bytes = 0.0
    for stage in work.stages:
        n_computed = n_outputs if stage.shape.for_outputs else n_tokens
        for product in stage.shape.products:
            madds += product.n_weights * product.share_used * n_computed
            n_bytes += product.n_bytes * product.share_read(max(1, round(n_computed)))
        heads = stage.shape.attention
        if heads is not None:
            tokens, cached = max(1, round(n_tokens)), round(n_cached)
            madds += heads.multiply_adds(tokens, cached) * n_tokens / tokens
            n_bytes += heads.reach(tokens, cached) * heads.kv_bytes_per_token(KV_ELEMENT_BYTES[kv])
    return madds, n_bytes


def _best(work: ModelWork, profile: Profile) -> float | None:
    """Multiply-adds per second at the best rates of the model's weight formats, weighted by their shares."""
    seconds = n_weights = 0.0
    for stage in work.stages:
        for product in stage.shape.products:
            if not profile.cpu.products:
                return None
            n_weights += product.n_weights
            seconds += product.n_weights / profile.cpu.product(product.form, product.bytes_per_weight).best
    return n_weights / seconds if seconds else None
