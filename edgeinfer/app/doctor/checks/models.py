"""Models on this machine that do not fit into its memory now: those that still run partly from disk, and the others.

In: the store, headers of large models. Out: which models do not fit, and what would run. Reads no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.scheduling.cost.memory import MemoryNeed, fitting_context, missing_bytes
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from edgeinfer.graph.graph import ModelSpec
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.models.projector_file import ProjectorFacts
    from edgeinfer.models.store import LocalModel
    from edgeinfer.settings import KVKind

SMALL_SHARE = 0.4
"""Files below this share of the memory fit with any usual context, so their headers need not be read."""
LEAST_CONTEXT = 256
MOST_HEADERS = 8
"""A limit, since reading a large vocabulary takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """A model, and the memory it needs with its usual context.

    `streams` describes how it runs if it does not fit as a whole: what is read from disk for every token.
    """

    name: str
    need: MemoryNeed
    streams: str | None = None


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """All models here, and the memory of this machine."""

    models: tuple[ModelNeed, ...] = ()
    available_bytes: int = 0
    total_bytes: int = 0


def read(machine: ExaminedMachine) -> ModelNeeds:
    """Read file sizes, and the headers of the largest model and of those that may not fit."""
    from edgeinfer.models.store import ModelStore

    topology = machine.topology
    found = ModelStore(machine.models).models()
    small_bytes = SMALL_SHARE * topology.available_bytes
    largest = max(found, key=lambda model: model.nbytes, default=None)
    headers = [model for model in found if model.nbytes > small_bytes or model == largest][:MOST_HEADERS]

    def need(model: LocalModel) -> ModelNeed:
        planned = _planned(model, machine) if model in headers else None
        return planned or ModelNeed(model.name, MemoryNeed(model.nbytes, 1, 0, 0, 0))

    return ModelNeeds(tuple(need(model) for model in found), topology.available_bytes, topology.total_bytes)


def _planned(model: LocalModel, machine: ExaminedMachine) -> ModelNeed | None:
    """The planned need of a model; None if it cannot be planned."""
    from edgeinfer.app.plans.fit import plan_for
    from edgeinfer.engine.opening.seeing import projector_facts
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.settings import load_settings

    available_bytes = machine.topology.available_bytes
    try:
        settings = load_settings(environ=machine.environ)
        with GGUFFile.open(model.path) as file:
            projector, _ = projector_facts(model.path, file, settings.load, model.source)
            spec, plan = plan_for(
                file,
                n_context=settings.load.n_context,
                kv=settings.load.kv,
                n_workers=1,
                ram_bytes=available_bytes,
                projector=projector,
            )
            if not missing_bytes(plan.need, available_bytes) or settings.load.device not in ("auto", "cpu"):
                return ModelNeed(model.name, plan.need)
            return _in_part(model.name, spec, file, plan.need, settings.load.kv, machine, projector)
    except EdgeInferError:
        return None


def _in_part(
    name: str,
    spec: ModelSpec,
    file: GGUFFile,
    need: MemoryNeed,
    kv: KVKind,
    machine: ExaminedMachine,
    projector: ProjectorFacts | None,
) -> ModelNeed:
    """What the cpu device needs with smaller passes, and what it reads in every pass if that is not enough."""
    from edgeinfer.engine.kv.limits import encoder_bytes, limits_for, memory_need, with_encoder
    from edgeinfer.engine.offload.weight_placement import CPU, WeightBudget, planned_weights, streaming_text

    disk, limits = (
        None if machine.profile is None else machine.profile.disk,
        limits_for(need.n_context, kv=kv, spec=spec),
    )
    try:
        holding = WeightBudget(encoder_bytes=encoder_bytes(CPU, projector))
        kept, limits = planned_weights(spec, file, name, limits, holding, disk, machine.topology.available_bytes)
    except DoesNotFit:
        return ModelNeed(name, need)
    need = memory_need(CPU, spec, file.tensors, limits)
    need = need if projector is None else with_encoder(need, CPU, projector)
    return ModelNeed(name, need, None if kept is None else streaming_text(kept, disk))


def judge(facts: ModelNeeds) -> Sequence[Finding]:
    """Each model that does not fit, by how much, and what would fit or how it runs anyway."""
    if not facts.models or not facts.available_bytes:
        return []
    large = [model for model in facts.models if missing_bytes(model.need, facts.available_bytes)]
    findings = [_streamed(model, facts) if model.streams else _unfit(model, facts) for model in large]
    n_fit = len(facts.models) - len(findings)
    if not findings:
        largest = max(facts.models, key=lambda model: (bool(model.need.n_context), model.need.total_bytes))
        message = f"{n_fit} here, {'it fits' if n_fit == 1 else 'all fit'} into memory ({_taken(largest)})"
        findings.append(Finding("models", "ok", message, value=n_fit, unit="models"))
    return findings


def _taken(model: ModelNeed) -> str:
    """The memory of a model: as in `plan` if its header was read, otherwise from its file size."""
    need = model.need
    at = f" at a context of {need.n_context}: {need.parts_text}" if need.n_context else ""
    return f"{model.name} takes {size_text(need.total_bytes)}{at}"


def _streamed(model: ModelNeed, facts: ModelNeeds) -> Finding:
    """A model that runs with only a part of its weights in memory."""
    missing = missing_bytes(model.need, facts.available_bytes)
    message = f"{model.name} runs with a part of its weights in memory, which is {size_text(missing)} too small for all"
    fix = f"edgeinfer pack {model.name} prepares that; {_room(model.need, facts)}"
    return Finding("models", "note", f"{message}: {model.streams}", fix, round(missing / 1e9, 3), "GB")


def _unfit(model: ModelNeed, facts: ModelNeeds) -> Finding:
    missing, need = missing_bytes(model.need, facts.available_bytes), model.need
    message = f"{model.name} needs {size_text(need.total_bytes)} of memory, {size_text(missing)} more than there is now"
    return Finding("models", "note", message, _room(need, facts), round(missing / 1e9, 3), "GB")


def _room(need: MemoryNeed, facts: ModelNeeds) -> str:
    """What would make the whole model fit in memory."""
    context = fitting_context(need, facts.available_bytes) if need.n_context else 0
    if context >= LEAST_CONTEXT:
        return f"a context of {context} tokens would fit (--ctx {context})"
    if not missing_bytes(need, facts.total_bytes):
        return f"close what takes {size_text(missing_bytes(need, facts.available_bytes))}, or use a smaller quant"
    return "a smaller quant of it, or a smaller model, would fit"


CHECK = Check(order=130, summary="models that do not fit", read=read, judge=judge, unknown=ModelNeeds())
