"""Whether a model fits this machine at a context length, and how fast it would be, before it is pulled or loaded.

In: a header (or an open file), a context, the machine's profile if one is saved. Out: a `Forecast`. Loads no weights
and measures nothing; unknown values are None, with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgeinfer.errors import DoesNotFit, EdgeInferError, UnsupportedModel
from edgeinfer.scheduling.cost.memory import MemoryNeed, missing_bytes, require_fit
from edgeinfer.scheduling.prediction import MeasuredSpeeds

if TYPE_CHECKING:
    from edgeinfer.app.plans.fit import ReadHeader
    from edgeinfer.app.plans.planning import Planned
    from edgeinfer.graph.graph import ModelSpec
    from edgeinfer.models.projector_file import ProjectorFacts
    from edgeinfer.scheduling.cost.work import ModelWork
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.scheduling.offload.streaming import StreamedModel
    from edgeinfer.settings import KVKind

UNMEASURED = "this machine was not measured yet; edgeinfer probe measures it"
QUICKLY_MEASURED = "speeds are from a quick look at this machine's memory; edgeinfer probe measures more"
UNMEASURED_DISK = "the disk of this machine was not measured; edgeinfer probe measures it"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What to expect of a model on this machine.

    n_context           context length in tokens that the forecast is for
    fits                whether it can be run: as a whole, or with weights read from disk
    ram_bytes           memory: the sum of weight_bytes, kv_bytes, buffer_bytes (draft_bytes among them) and the program
    available_bytes     available memory
    streamed_bytes      weight bytes read from disk for every token; 0 if all weights stay in memory
    decode_tok_s        decode rate at the start of a conversation; full_decode_tok_s: when the context is full
    prefill_tok_s       prefill rate
    bound_by            what limits decode
    measured            rates of answers on this machine
    is_estimate         derived from the header of another quant of the same model
    note                why it does not fit, or why figures are missing
    n_params, n_context_trained, architecture, licence, title: from the header; 0 and "" if it lacks them
    """

    n_context: int
    fits: bool
    ram_bytes: int
    available_bytes: int
    weight_bytes: int = 0
    kv_bytes: int = 0
    buffer_bytes: int = 0
    streamed_bytes: int = 0
    decode_tok_s: float | None = None
    full_decode_tok_s: float | None = None
    prefill_tok_s: float | None = None
    bound_by: str = ""
    plan: str = ""
    measured: MeasuredSpeeds = field(default_factory=MeasuredSpeeds)
    is_estimate: bool = False
    note: str = ""
    n_params: int = 0
    n_context_trained: int = 0
    architecture: str = ""
    licence: str = ""
    title: str = ""
    draft_bytes: int = 0


def by_size(nbytes: int, n_context: int, available_bytes: int, note: str = "") -> Forecast:
    """A forecast from the size of the files alone."""
    need = MemoryNeed(nbytes, 1, 0, 0, n_context)
    missing = missing_bytes(need, available_bytes)
    return Forecast(n_context, not missing, need.total_bytes, available_bytes, nbytes, note=note)


def estimated(known: Forecast, known_bytes: int, nbytes: int) -> Forecast:
    """Forecast a quant from the known forecast of another one: weights and decode time scale with file size."""
    share = nbytes / max(1, known_bytes)
    weight_bytes = int(known.weight_bytes * share)
    need = MemoryNeed(weight_bytes, 1, known.kv_bytes, known.buffer_bytes, known.n_context)
    is_whole = not missing_bytes(need, known.available_bytes) and not known.streamed_bytes

    def slower(rate: float | None) -> float | None:
        return rate / share if rate is not None and is_whole else None

    return replace(
        known,
        fits=is_whole,
        ram_bytes=need.total_bytes,
        weight_bytes=weight_bytes,
        streamed_bytes=0,
        decode_tok_s=slower(known.decode_tok_s),
        full_decode_tok_s=slower(known.full_decode_tok_s),
        measured=MeasuredSpeeds(),
        is_estimate=True,
        note="reckoned from another quant of it; i looks at this one" if is_whole else "larger than the memory",
    )


def forecast_of(
    file: ReadHeader,
    nbytes: int,
    n_context: int | None,
    *,
    profile: Profile | None,
    kv: KVKind = "f16",
    available_bytes: int | None = None,
    fingerprint: str | None = None,
    measured: MeasuredSpeeds | None = None,
    projector: ProjectorFacts | None = None,
) -> Forecast:
    """Forecast a model on the CPU. `fingerprint`: of a local model, whose earlier runs are taken into account.

    `projector`: with which it reads images.
    """
    from edgeinfer.app.plans.fit import plan_for
    from edgeinfer.engine.kv.limits import memory_for_model
    from edgeinfer.settings import CTX_CAP

    available = memory_for_model() if available_bytes is None else available_bytes
    try:
        spec, plan = plan_for(file, device="cpu", n_context=n_context, kv=kv, projector=projector)
    except EdgeInferError as error:
        found = by_size(nbytes, n_context or CTX_CAP, available, str(error))
        return _described(replace(found, fits=False) if isinstance(error, UnsupportedModel) else found, file, 0)
    found = Forecast(
        plan.need.n_context,
        True,
        plan.need.total_bytes,
        available,
        plan.need.weight_bytes,
        plan.need.kv_bytes,
        plan.need.buffer_bytes,
        measured=measured or MeasuredSpeeds(),
        plan=plan.line,
        n_context_trained=spec.n_context_trained,
        draft_bytes=plan.need.draft_bytes,
    )
    try:
        found = _predicted(found, spec, file, profile, kv, fingerprint, projector)
    except DoesNotFit as refusal:
        found = replace(found, fits=False, note=str(refusal))
    names = {weight.tensor for weight in spec.weights()}
    return _described(found, file, sum(math.prod(file.tensors[name].shape) for name in names))


def _described(found: Forecast, file: ReadHeader, n_params: int) -> Forecast:
    texts = [file.metadata.text(f"general.{key}", "") for key in ("architecture", "license", "name")]
    return replace(found, n_params=n_params, architecture=texts[0], licence=texts[1], title=texts[2])


def _predicted(
    found: Forecast,
    spec: ModelSpec,
    file: ReadHeader,
    profile: Profile | None,
    kv: KVKind,
    fingerprint: str | None,
    projector: ProjectorFacts | None,
) -> Forecast:
    """Add which weights stay in memory, and the rates if the machine is measured. Raises DoesNotFit."""
    from edgeinfer.app.plans.planning import PlanRequest, plan_model, plan_streamed
    from edgeinfer.engine.kv.limits import encoder_bytes, limits_for, memory_need, with_encoder
    from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
    from edgeinfer.scheduling.cost.work import work_of

    disk = None if profile is None else profile.disk
    name = file.metadata.text("general.name", "the model")
    limits = limits_for(found.n_context, kv=kv, spec=spec)
    holding = WeightBudget(encoder_bytes=encoder_bytes("cpu", projector))
    kept, limits = planned_weights(spec, file, name, limits, holding, disk, found.available_bytes, fingerprint)
    need = memory_need("cpu", spec, file.tensors, limits)
    need = need if kept is None else replace(need, weight_bytes=kept.held_bytes)
    need = need if projector is None else with_encoder(need, "cpu", projector)
    if kept is None:
        require_fit(need, found.available_bytes)
    found = replace(
        found,
        ram_bytes=need.total_bytes,
        weight_bytes=need.weight_bytes,
        kv_bytes=need.kv_bytes,
        buffer_bytes=need.buffer_bytes,
        draft_bytes=need.draft_bytes,
    )
    if kept is not None:
        found = replace(found, streamed_bytes=kept.flash_bytes)
    if profile is None:
        return replace(found, note=UNMEASURED)
    if kept is not None and disk is None:
        return replace(found, note=UNMEASURED_DISK)
    work = work_of(spec, file.tensors)
    wanted = PlanRequest(found.n_context, kv, schedule="cpu", most_tokens=limits.max_tokens)
    if kept is None:
        planned = plan_model(profile, work, wanted, fits=True)
    else:
        planned = plan_streamed(profile, work, wanted, kept)
    return _rated(found, profile, work, planned, kept, kv)


def _rated(
    found: Forecast, profile: Profile, work: ModelWork, planned: Planned, kept: StreamedModel | None, kv: KVKind
) -> Forecast:
    """Add the rates, corrected by earlier answers on this machine."""
    from edgeinfer.app.plans.expectation import adjustment_of
    from edgeinfer.engine.run.workers import worker_pools_of
    from edgeinfer.scheduling.prediction import Predictor

    adjustment = adjustment_of(profile, streams=kept is not None)
    planned = replace(planned, adjustment=adjustment)
    decoding, _ = worker_pools_of(profile, work, kv, None)
    predictor = Predictor(decoding, work, kv)
    if kept is not None and profile.disk is not None:
        streamed, disk = kept.streamed, profile.disk
        predictor = Predictor(
            decoding,
            work,
            kv,
            disk_s=lambda n_tokens: streamed.ahead_s(disk, n_tokens),
            waiting_s=lambda n_tokens: streamed.record_reads(n_tokens).seconds,
        )
    full_s = adjustment.tokens_s(predictor.decode_s(1, max(1, found.n_context - 1)))
    return replace(
        found,
        decode_tok_s=planned.decode_tok_s,
        full_decode_tok_s=1.0 / full_s,
        prefill_tok_s=planned.prefill_tok_s,
        bound_by=planned.decode.time.bound_by,
    )
