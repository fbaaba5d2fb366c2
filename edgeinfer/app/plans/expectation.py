"""Compares what an answer took with what the machine's profile predicted.

In: a loaded model and the numbers of an answer. Out: predicted rates, and lines of text. Measures nothing: without a
saved profile, or for a device that the profile does not cover, there is no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.measure.profiles import Adjustment
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.scheduling.prediction import Predictor

MADE_MIN = 32
"""Answers with fewer tokens than this are too short to check a prediction."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Predicted tokens per second: of this prompt's new tokens, and one at a time at this depth.

    None if nothing was read or generated, and for prompts too short to predict before any was measured. `is_whole`:
    includes what a step takes besides its pass, which is known from earlier answers.
    """

    prefill_tok_s: float | None
    plain_tok_s: float | None
    is_whole: bool = True


def expected_of(llm: LLM, stats: Stats) -> Expected | None:
    """The prediction for a finished answer, corrected by earlier answers; None without a profile."""
    found = _predicted(llm, stats)
    if found is None:
        return None
    profile, read_s, made_s = found
    adjustment = adjustment_of(profile, streams=llm.telemetry.streamed is not None, is_first=stats.is_first)
    n_read, n_made = stats.n_prompt - stats.n_cached, stats.n_generated
    is_known = n_read > 0 and adjustment.knows_prompt(n_read)
    return Expected(
        n_read / adjustment.prompt_s(read_s) if is_known else None,
        n_made / adjustment.tokens_s(made_s, n_made) if n_made else None,
        adjustment.step_s is not None,
    )


def note_for_calibration(llm: LLM, stats: Stats) -> None:
    """Record an answer's times beside its prediction, if it is long enough and the power limiter allows idle work."""
    from edgeinfer.engine.measure.profiles import ProfileStore

    found = _predicted(llm, stats) if llm.telemetry.policy.idle_work else None
    if found is None:
        return
    profile, read_s, made_s = found
    calibration = ProfileStore().calibration(profile.fingerprint, streams=llm.telemetry.streamed is not None)
    n_read, n_made = stats.n_prompt - stats.n_cached, stats.n_generated
    if n_read > 0 and stats.prefill_tok_s and stats.read_alone:
        calibration.note_prompt(n_read, read_s, n_read / stats.prefill_tok_s, is_first=stats.is_first)
    if n_made >= MADE_MIN and stats.plain_tok_s:
        calibration.note_tokens(made_s / n_made, 1 / stats.plain_tok_s, stats.step_s)
    calibration.save()


def _predicted(llm: LLM, stats: Stats) -> tuple[Profile, float, float] | None:
    """The profile, and predicted seconds of reading the prompt and of generating the answer one token at a time."""
    found = predictors_of(llm)
    if found is None:
        return None
    profile, reader, maker = found
    read_s = reader.prompt_s(stats.n_prompt - stats.n_cached, stats.n_cached)
    return profile, read_s, maker.decode_s(stats.n_generated, stats.n_prompt)


def predictors_of(llm: LLM) -> tuple[Profile, Predictor, Predictor] | None:
    """The profile, and what predicts passes of prompts and of answers; None if there is no prediction."""
    from edgeinfer.app.plans.measured import kept_profile
    from edgeinfer.engine.run.workers import worker_pools_of
    from edgeinfer.scheduling.machine.profile import CPU
    from edgeinfer.scheduling.prediction import Predictor

    telemetry = llm.telemetry
    if telemetry.device != llm.info.device:
        return None  # two devices gave the answer
    if llm.info.device != CPU:
        return _predictors_elsewhere(llm)
    profile = kept_profile()
    if profile is None or (telemetry.streamed is not None and profile.disk is None):
        return None
    known = [core.number for core in profile.cpu.cores]
    decoding, reading = worker_pools_of(profile, telemetry.work, llm.info.kv, _cores_of(telemetry.affinity, known))
    streamed, disk = telemetry.streamed, profile.disk
    disk_s = None if streamed is None or disk is None else lambda n_tokens: streamed.ahead_s(disk, n_tokens)
    waiting_s = None if streamed is None else lambda n_tokens: streamed.record_reads(n_tokens).seconds
    most, kv = telemetry.limits.max_tokens, llm.info.kv
    reader = Predictor(reading, telemetry.work, kv, disk_s=disk_s, waiting_s=waiting_s, most_tokens=most)
    budget = llm.info.approximation.kv or 0
    maker = Predictor(decoding, telemetry.work, kv, disk_s=disk_s, waiting_s=waiting_s, kv_budget=budget)
    return profile, reader, maker


def _predictors_elsewhere(llm: LLM) -> tuple[Profile, Predictor, Predictor] | None:
    """The same for other devices or several of them, if they were measured."""
    from edgeinfer.engine.probing.combination import kept_combination
    from edgeinfer.engine.run.evaluators import is_own
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.scheduling.placement.placement import all_on
    from edgeinfer.scheduling.prediction import Predictor

    telemetry = llm.telemetry
    names, topology = llm.info.device.split("+"), read_topology()
    if not is_own(",".join(names)):
        return None
    profile = kept_combination(names, topology, llm.info.cores)
    if profile is None:
        return None
    placement = all_on(telemetry.work, names[0]) if telemetry.shared is None else telemetry.shared.placement
    predictor = Predictor(profile, telemetry.work, llm.info.kv, placement)
    return profile, predictor, predictor


def _cores_of(affinity: Sequence[Sequence[int]], known: Sequence[int]) -> Sequence[int] | None:
    """The cores of the workers; as many known cores as workers if they are not pinned. None: unknown."""
    if not affinity or not known:
        return None
    pinned = sorted({cores[0] for cores in affinity if len(cores) == 1})
    return pinned if len(pinned) == len(affinity) else known[: len(affinity)]


def adjustment_of(profile: Profile, *, streams: bool = False, is_first: bool = True) -> Adjustment:
    """The correction of predictions by answers on this machine, separate for models that stream weights.

    `is_first`: for the first answer of a model that has just been loaded, as in `run`.
    """
    from edgeinfer.engine.measure.profiles import ProfileStore

    return ProfileStore().calibration(profile.fingerprint, streams=streams).adjustment(is_first=is_first)


def expectation_lines(
    expected: Expected | None, stats: Stats, device: str = "cpu", cores: Sequence[int] = ()
) -> list[str]:
    """Predicted and measured rates side by side; without a prediction, how to get one for `device` on `cores`."""
    if expected is None:
        return [f"predicted: nothing, as {_missing(device, cores)}"]
    parts = []
    whole = "" if expected.is_whole else " by passes alone, as no answer was measured here yet"
    for what, predicted, measured, but in (
        (f"prompt of {stats.n_prompt - stats.n_cached}", expected.prefill_tok_s, stats.prefill_tok_s, ""),
        ("one token at a time", expected.plain_tok_s, stats.plain_tok_s, whole),
    ):
        if predicted is not None:
            found = "" if measured is None else f" (measured {measured:.1f})"
            parts.append(f"{what} {predicted:.1f} tok/s{but}{found}")
    return ["predicted: " + ", ".join(parts)] if parts else []


def _missing(device: str, cores: Sequence[int]) -> str:
    """Why nothing is predicted for a device, or several joined by a plus, and the command that helps."""
    from edgeinfer.app.plans.measured import are_measurable, kept_profile
    from edgeinfer.scheduling.machine.profile import CPU
    from edgeinfer.scheduling.machine.topology import read_topology

    if device == CPU and kept_profile() is not None:
        return "the disk that weights come from was not measured; edgeinfer probe does that"
    if device == CPU:
        return "this machine was not measured; edgeinfer probe does that"
    names = device.split("+")
    if not are_measurable(names):
        return f"{device} cannot be measured"
    workers, some = read_topology().workers(), ""
    if cores and tuple(cores) != workers:
        is_first = tuple(cores) == workers[: len(cores)]
        some = f" --threads {len(cores)}" if is_first else f" --cores {','.join(map(str, cores))}"
    return f"{device} was not measured on this machine; edgeinfer probe --device {','.join(names)}{some} does that"


def timeline_lines(llm: LLM) -> list[str]:
    """What each of several devices did in the last pass."""
    if llm.telemetry.shared is None:
        return []
    timeline = llm.telemetry.shared.timeline
    whole_s = max(1e-9, timeline.ended - timeline.began)
    shares = ", ".join(f"{name} {100 * timeline.busy_s(name) / whole_s:.0f} %" for name in timeline.devices)
    beside = f"; of the time of the less busy one the other worked {100 * timeline.overlap:.0f} %"
    return [f"last pass, {1e3 * whole_s:.2f} ms: {shares} busy{beside if len(timeline.devices) > 1 else ''}"]


def worker_lines(affinity: Sequence[Sequence[int]]) -> list[str]:
    """Cores the workers may run on, according to the system, and the NUMA nodes of those cores if there are several."""
    from edgeinfer.scheduling.machine.topology import read_topology

    if not affinity:
        return []
    topology = read_topology()
    node_of = {core.number: core.node for core in topology.cores}
    several = len(topology.nodes) > 1
    shown = [
        "-".join(str(core) for core in (cores[0], cores[-1])[: min(2, len(cores))])
        + (f" (node {node_of[cores[0]]})" if several and cores[0] in node_of else "")
        for cores in affinity
    ]
    return [f"workers on cores {', '.join(shown)}"]
