"""How much memory the server's models take together, and whether one more fits.

In: the headers of models, how they are loaded, what open models take. Out: bytes, from the same count as `plan` and the
loader; APIError for a model that never fits. Loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.app.plans.fit import plan_for, require_model_file
from edgeinfer.app.server.errors import APIError
from edgeinfer.errors import UnsupportedModel
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, RESERVE_SHARE, MemoryNeed, missing_bytes, would_fit
from edgeinfer.setting_groups import CTX_CAP
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from edgeinfer.load_options import LoadOptions
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.models.store import LocalModel


def planned_need(model: LocalModel, load: LoadOptions, n_sessions: int = 1) -> MemoryNeed | None:
    """The memory that a model will take, as the loader counts it; None for a folder with a decoder.

    `n_sessions`: conversations of full length that its KV cache holds. Raises BadGGUF if the file is no model, and
    BadSetting for options that are impossible for it.
    """
    from edgeinfer.engine.kv.limits import weights_bytes
    from edgeinfer.models.gguf import GGUFFile

    if require_model_file(model.path) is None:
        return None
    load = load.with_adapters(model.adapters)
    with GGUFFile.open(model.path, load.adapters) as file:
        need = _need(file, load, n_sessions, model.source)
    if load.ram_bytes is None:
        return need
    return replace(need, weight_bytes=min(need.weight_bytes, weights_bytes(load.ram_bytes) + need.encoder_bytes))


def _need(file: GGUFFile, load: LoadOptions, n_sessions: int, source: str) -> MemoryNeed:
    from edgeinfer.engine.kv.limits import context_of, limits_for, unknown_need
    from edgeinfer.engine.opening.seeing import projector_facts

    try:
        projector, _ = projector_facts(file.path, file, load, source)
        _, plan = plan_for(
            file,
            device=load.device,
            n_context=load.n_context,
            kv=load.kv,
            approx=load.approximation,
            kv_ram=load.kv_ram_bytes,
            adapters=file.adapters,
            n_sessions=n_sessions,
            projector=projector,
        )
    except UnsupportedModel:  # another program may run the model
        trained = file.metadata.integer(f"{file.metadata.text('general.architecture')}.context_length", CTX_CAP)
        limits = limits_for(context_of(trained, load.n_context), n_sessions, load.kv)
        return unknown_need(file.metadata, file.tensors, limits)
    return plan.need


class ModelMemory:
    """The memory for all models. `limit_bytes`: what they may take together; None: what is available."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._free_bytes: int | None = None

    def note_free(self) -> None:
        """Measure what is available while no model is open."""
        from edgeinfer.engine.kv.limits import memory_for_model

        if self._limit_bytes is None:
            self._free_bytes = memory_for_model()

    def require(self, model: LocalModel, need: MemoryNeed) -> None:
        """Raises APIError for a model that the limit leaves no room for even alone."""
        limit = self._limit_bytes
        if limit is not None and need.total_bytes > limit:
            raise APIError(
                400,
                f"{model.name} takes {size_text(need.total_bytes)} of memory ({need.parts_text}) with a context of "
                f"{need.n_context} tokens, and models may take {size_text(limit)} (`edgeinfer serve --models-memory`); "
                f"{would_fit(need, limit)}",
                "model_too_large",
                "model",
            )

    def missing_bytes(self, need: MemoryNeed, others: Iterable[MemoryNeed]) -> int:
        """The bytes that must be freed beside open models before another one opens; 0 while none is open."""
        from edgeinfer.engine.kv.limits import memory_for_model

        taken = list(others)
        if not taken:
            return 0
        total = sum(each.total_bytes - PROGRAM_BYTES for each in taken) + need.total_bytes
        if self._limit_bytes is not None:
            return max(0, total - self._limit_bytes)
        beyond = 0 if self._free_bytes is None else total - _usable(self._free_bytes)
        return max(beyond, missing_bytes(need, memory_for_model()))


def _usable(available_bytes: int) -> int:
    """Available memory without the reserve for other programs."""
    return int(available_bytes * (1.0 - RESERVE_SHARE))
