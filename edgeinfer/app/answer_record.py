"""The answer of `run` as a JSON object, and the memory of the process.

In: an open model, an answer that is over, what was read of weights for it. Out: a record; keys may be added, never
renamed. Prints nothing.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.app.plans.expectation import Expected
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.offload.weights import WeightReads
    from edgeinfer.settings import Settings


@dataclass(frozen=True, slots=True)
class AnswerReads:
    """What was read of weights for an answer, and the seconds it took."""

    reading: WeightReads
    seconds: float


def answer_record(
    llm: LLM, stream: TextStream, settings: Settings, read: AnswerReads, expected: Expected | None
) -> dict[str, object]:
    """The answer as a JSON object; keys may be added, never renamed."""
    from edgeinfer.app.disk_reading import reading_record, skipped_share
    from edgeinfer.app.plans.fit import memory_record

    stats, facts = stream.stats, llm.info
    assert stats is not None
    return {
        "model": facts.name,
        "text": stream.content,
        "reasoning": stream.reasoning,
        "tokens": list(stream.tokens),
        "n_prompt": stats.n_prompt,
        "n_cached": stats.n_cached,
        "n_from_disk": stats.n_from_disk,
        "n_from_modules": stats.n_from_modules,
        "n_shifted": stats.n_shifted,
        "n_rows": stats.n_rows,
        "n_generated": stats.n_generated,
        "finish_reason": stats.finish_reason,
        "truncated": stats.truncated,
        "notices": [*facts.notices, *stats.notices],
        "ttft_s": stats.ttft_s,
        "prefill_tok_s": stats.prefill_tok_s,
        "decode_tok_s": stats.decode_tok_s,
        "plain_tok_s": stats.plain_tok_s,
        "predicted": None
        if expected is None
        else {"prefill_tok_s": expected.prefill_tok_s, "plain_tok_s": expected.plain_tok_s},
        "steps": stats.steps,
        "accepted_per_step": stats.accepted_per_step,
        "draft": _draft_record(stats),
        "draft_s": None if stats.draft is None else stats.draft.seconds,
        "two_models": _two_models_record(stats),
        "approx": facts.approx,
        "kv_budget": facts.approximation.kv,
        "prefill_budget": facts.approximation.prefill,
        "skipped_share": skipped_share(read.reading),
        "mode": facts.mode,
        "policy": stats.policy,
        "workers": [{"cores": list(cores)} for cores in llm.telemetry.affinity],
        "joules": stats.joules,
        "joules_per_token": stats.joules_per_token,
        "seed": stats.seed,
        "load_s": facts.load_s,
        "peak_rss_bytes": peak_rss_bytes(),
        "memory": None if facts.need is None else memory_record(facts.need),
        "weights_read_bytes": stats.weights_read_bytes,
        "reading": reading_record(read.reading, read.seconds),
        "devices": llm.telemetry.device.split("+"),
        "plan": _plan_line(llm, settings.load.schedule),
    }


def _plan_line(llm: LLM, schedule: str) -> str:
    """Where the model is: on one device, or on several as it is placed."""
    from edgeinfer.text_values import size_text

    telemetry = llm.telemetry
    facts = llm.info
    where = f"{telemetry.device}: everything"
    if telemetry.shared is not None:
        from edgeinfer.app.plans.record import stages_text

        where = f"{telemetry.device} by schedule {schedule}: {stages_text(telemetry.shared.placement)}"
    elif "+" in telemetry.device:
        where = f"{telemetry.device} by schedule {schedule}"
    elif telemetry.streamed is not None:
        where += f", {telemetry.streamed.nbytes / 1e6:.0f} MB of weights a pass from disk"
    if not facts.approximation.is_exact:
        where += f", approx {facts.approximation}"
    memory_bytes = facts.resident_bytes if facts.need is None else facts.need.total_bytes
    return f"{where}, memory {size_text(memory_bytes)}, context {facts.n_context}"


def _draft_record(stats: Stats) -> dict[str, dict[str, int]]:
    """Drafted tokens by source, of the sources that had any."""
    sources = stats.draft.sources if stats.draft is not None else {}
    return {
        name: {"proposed": count.proposed, "accepted": count.accepted}
        for name, count in sources.items()
        if count.proposed
    }


def _two_models_record(stats: Stats) -> dict[str, object] | None:
    """What each of two models wrote; None if one did."""
    both = None if stats.draft is None else stats.draft.shared_writing
    return None if both is None else asdict(both)


def peak_rss_bytes() -> int | None:
    """Peak memory of this process in bytes; None if the system does not report it."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "linux":
        # getrusage starts from the size of the parent process
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others KiB
