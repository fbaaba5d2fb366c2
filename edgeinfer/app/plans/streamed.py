"""Plans of models whose weights do not all stay in memory: what `run` would keep here, and the same elsewhere.

In: a model's header, a request, a machine. Out: plans that say what stays, or why nothing would work. Opens no bundle
file and reads no weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.errors import BadSetting

if TYPE_CHECKING:
    from edgeinfer.app.plans.fit import Fit
    from edgeinfer.app.plans.planning import Planned, PlanRequest
    from edgeinfer.app.plans.record import PlannedModel
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.scheduling.cost.memory import MemoryNeed
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.scheduling.prediction import Plan
    from edgeinfer.settings import Settings


def may_be_found(file: GGUFFile, settings: Settings, asked: PlanRequest) -> bool:
    """Whether any device may run the model: weights that do not all stay in memory are supported on the cpu only."""
    from edgeinfer.engine.kv.limits import context_of, limits_for
    from edgeinfer.engine.offload.weight_placement import WeightBudget, fit_weights
    from edgeinfer.errors import DoesNotFit
    from edgeinfer.models.load import spec_of

    spec = spec_of(file.metadata, file.tensors, settings.load.n_context, adapters=file.adapters)
    n_context = context_of(spec.n_context_usual, settings.load.n_context)
    limits = limits_for(n_context, kv=settings.load.kv, spec=spec)
    try:
        return fit_weights(spec, file, limits, WeightBudget(asked.ram_bytes)).budget_bytes is None
    except DoesNotFit:
        return False


def held_here(
    here: Plan, name: str, file: GGUFFile, facts: PlannedModel, settings: Settings, asked: PlanRequest
) -> tuple[Plan, PlanRequest]:
    """The plan for an entire model on a device, or for as much on the cpu as `run` would keep in memory.

    Raises DoesNotFit, with the number that decides, and BadSetting for a device that holds everything or nothing.
    """
    from edgeinfer.engine.kv.limits import (
        encoder_bytes,
        limits_for,
        memory_for_model,
        memory_need,
        with_budget,
        with_encoder,
        with_kv_ram,
    )
    from edgeinfer.engine.offload.weight_placement import CPU, WeightBudget, known_disk, planned_weights
    from edgeinfer.engine.opening.kv_ram import require_weights_in_memory
    from edgeinfer.models.file_facts import fingerprint
    from edgeinfer.scheduling.cost.memory import require_fit

    device, spec, projector = settings.load.device, facts.spec, facts.projector.facts
    if device in (CPU, "auto"):
        limits, load = limits_for(here.need.n_context, kv=settings.load.kv, spec=spec), settings.load
        limits = with_kv_ram(with_budget(limits, spec, load.approximation.kv), load.kv_ram_bytes)
        holding = WeightBudget(asked.ram_bytes, encoder_bytes=encoder_bytes(CPU, projector))
        own = fingerprint(file)
        kept, limits = planned_weights(spec, file, name, limits, holding, known_disk(), fingerprint=own)
        require_weights_in_memory(name, limits)
        need, asked = memory_need(CPU, spec, file.tensors, limits), replace(asked, most_tokens=limits.max_tokens)
        need = need if kept is None else replace(need, weight_bytes=kept.held_bytes)
        here = replace(here, kept=kept, need=need if projector is None else with_encoder(need, CPU, projector))
        if kept is not None:
            return here, asked
    elif asked.ram_bytes is not None:
        raise BadSetting(
            "only the cpu reads weights from disk while it runs: use --device cpu with --ram, not "
            f"{device}, or --machine to plan for another one"
        )
    require_fit(here.need, memory_for_model())
    return here, asked


def planned_there(profile: Profile, name: str, file: GGUFFile, facts: PlannedModel, wanted: PlanRequest) -> Planned:
    """The plan for another machine: a CPU alone keeps what it would here; else the planner places everything.

    Raises DoesNotFit, UnknownKey.
    """
    from edgeinfer.app.plans.planning import plan_model, plan_streamed
    from edgeinfer.engine.kv.limits import encoder_bytes, limits_for
    from edgeinfer.engine.offload.weight_placement import CPU, WeightBudget, planned_weights
    from edgeinfer.models.file_facts import fingerprint

    is_alone = wanted.schedule == "cpu" or (wanted.schedule == "auto" and not profile.accelerators)
    if is_alone and profile.disk is not None:
        limits = limits_for(wanted.n_context, wanted.n_sequences, wanted.kv, facts.spec)
        beside = encoder_bytes(CPU, facts.projector.facts)
        holding, available = WeightBudget(wanted.ram_bytes, encoder_bytes=beside), profile.cpu.memory_bytes
        there = profile.disk, available, fingerprint(file)
        kept, limits = planned_weights(facts.spec, file, name, limits, holding, *there)
        if kept is not None:
            return plan_streamed(profile, facts.work, replace(wanted, most_tokens=limits.max_tokens), kept)
    return plan_model(profile, facts.work, wanted)


def fit_there(whole: MemoryNeed, planned: Planned, wanted: PlanRequest) -> Fit:
    """The memory a model takes on another machine, and whether it fits; `whole` is what it takes on a cpu alone."""
    from edgeinfer.app.plans.fit import Fit

    profile, usage, kept = planned.profile, planned.decode.usage, planned.kept
    available, need = profile.cpu.memory_bytes, whole
    if kept is not None:
        need = replace(whole, weight_bytes=kept.held_bytes + whole.encoder_bytes)
    elif usage.vram_bytes or planned.n_sequences > 1:
        need = planned.need(whole)
    in_part = kept is not None or usage.flash_bytes > 0
    sizes = {name: profile.device(name).memory_bytes for name, n_bytes in usage.vram_bytes.items() if n_bytes}
    vram = {name: min(size, size if wanted.vram_bytes is None else wanted.vram_bytes) for name, size in sizes.items()}
    return Fit(need, available, whole if in_part else None, vram_bytes=vram)
