"""Models on this machine that do not fit into its memory now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import Machine
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.download.space import size_text
from edgeinfer.scheduling.memory import MemoryNeed, fitting_context, missing_bytes

if TYPE_CHECKING:
    from edgeinfer.models.store import LocalModel

SMALL_SHARE = 0.4
"""Files below this share of the memory fit with any usual context: their headers need not be read."""
LEAST_CONTEXT = 256
MOST_HEADERS = 8
"""Reading a large vocabulary takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class ModelNeed:
    """A model, and what it takes with its usual context."""

    name: str
    need: MemoryNeed


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """All models here, and the memory of this machine."""

    models: tuple[ModelNeed, ...] = ()
    available_bytes: int = 0
    total_bytes: int = 0


def read(machine: Machine) -> ModelNeeds:
    """Sizes of files, and of those that may not fit what their headers say."""
    from edgeinfer.models.store import Store

    topology = machine.topology
    found = Store(machine.models).models()
    small_bytes = SMALL_SHARE * topology.available_bytes
    headers = [model for model in found if small_bytes < model.nbytes < topology.total_bytes][:MOST_HEADERS]

    def need(model: LocalModel) -> MemoryNeed:
        planned = _planned(model, topology.available_bytes, machine.environ) if model in headers else None
        return planned or MemoryNeed(model.nbytes, 1, 0, 0, 0)

    needs = tuple(ModelNeed(model.name, need(model)) for model in found)
    return ModelNeeds(needs, topology.available_bytes, topology.total_bytes)


def _planned(model: LocalModel, available_bytes: int, environ: Mapping[str, str]) -> MemoryNeed | None:
    """What a plan says of a model; None where it cannot be planned."""
    from edgeinfer.app.fit import plan_for
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.settings import load_settings

    try:
        settings = load_settings(environ=environ)
        with GGUFFile.open(model.path) as file:
            _, plan = plan_for(
                file.metadata,
                file.tensors,
                n_context=settings.generation.ctx,
                kv=settings.machine.kv,
                n_workers=1,
                ram_bytes=available_bytes,
            )
    except EdgeInferError:
        return None
    return plan.need


def judge(facts: ModelNeeds) -> Sequence[Finding]:
    """Each model that does not fit, by how much, and what would."""
    if not facts.models or not facts.available_bytes:
        return []
    findings = [_unfit(model, facts) for model in facts.models if missing_bytes(model.need, facts.available_bytes)]
    n_fit = len(facts.models) - len(findings)
    largest = max(model.need.total_bytes for model in facts.models)
    if not findings:
        message = f"{n_fit} here, {'it fits' if n_fit == 1 else 'all fit'} into memory ({size_text(largest)} at most)"
        findings.append(Finding("models", "ok", message, value=n_fit, unit="models"))
    return findings


def _unfit(model: ModelNeed, facts: ModelNeeds) -> Finding:
    missing, need = missing_bytes(model.need, facts.available_bytes), model.need
    context = fitting_context(need, facts.available_bytes) if need.n_context else 0
    if context >= LEAST_CONTEXT:
        fix = f"a context of {context} tokens would fit (--ctx {context})"
    elif not missing_bytes(need, facts.total_bytes):
        fix = f"close what takes {size_text(missing)}, or use a smaller quant"
    else:
        fix = "a smaller quant of it, or a smaller model"
    message = f"{model.name} needs {size_text(need.total_bytes)} of memory, {size_text(missing)} more than there is now"
    return Finding("models", "note", message, fix, round(missing / 1e9, 3), "GB")


CHECK = Check(order=130, summary="models that do not fit", read=read, judge=judge, unknown=ModelNeeds())
