"""Loads the models of a batch from settings: one, or a replica on each NUMA node.

In: settings, options of the batch. Out: open `Replicas`. Reserves KV cache for the whole contexts of as many answers as
fit in memory; shows loading progress on stderr if that is a terminal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgeinfer.app.opening.loading import check_template, load_model, load_options
from edgeinfer.app.opening.model_choice import open_chosen
from edgeinfer.app.opening.terminal_face import TerminalFace
from edgeinfer.app.progress import ProgressLine
from edgeinfer.errors import BadSetting, DoesNotFit, UnknownKey, UnsupportedModel
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.replicas import Cores, Replicas
    from edgeinfer.models.store import LocalModel


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Concurrent requests, replicas if the user chose a number, accelerator memory if not all of it."""

    parallel: int
    n_replicas: int | None = None
    vram_bytes: int | None = None


def open_for_answers(settings: Settings, n: int) -> LLM:
    """Choose the model and load it with KV cache for `n` answers, or as many as fit. Raises EdgeInferError."""
    check_template(settings.load)
    face = TerminalFace()

    def load(model: LocalModel) -> LLM:
        face.found(model.path, settings)
        n_sessions = beside_all_weights(settings, model.path, n)
        while True:
            try:
                return load_model(model, settings, face, n_sessions, race="first")
            except DoesNotFit:
                if n_sessions == 1:
                    raise
                n_sessions //= 2

    return open_chosen(settings, load, face)


def open_replicas(settings: Settings, wanted: BatchSettings) -> Replicas:
    """Choose the model and load it, once or as replicas on several worker pools. Raises EdgeInferError."""
    _check_schedule(settings)
    check_template(settings.load)
    return open_chosen(settings, lambda model: open_found(settings, model, wanted))


def open_found(settings: Settings, model: LocalModel, wanted: BatchSettings) -> Replicas:
    """Load a model, once or as replicas on several worker pools. Raises EdgeInferError."""
    from edgeinfer.engine.replicas import Replicas

    pools = worker_pools(settings, model.path, wanted)
    each = -(-wanted.parallel // max(1, len(pools)))
    return Replicas.open(lambda cores: _loaded(settings, model, each, cores, wanted.vram_bytes), pools)


def _check_schedule(settings: Settings) -> None:
    from edgeinfer.scheduling.batch.schedules import NAMES
    from edgeinfer.scheduling.placement.schedules import SCHEDULES

    names = (*SCHEDULES, *NAMES)
    if settings.load.schedule not in names:
        raise UnknownKey(f"no schedule is called {settings.load.schedule!r}; edgeinfer has: {', '.join(names)}")


def worker_pools(settings: Settings, path: Path, wanted: BatchSettings) -> tuple[Cores, ...]:
    """The cores of each replica; () for a single model loaded in the usual way."""
    from edgeinfer.app.plans.measured import kept_profile
    from edgeinfer.engine.kv.limits import context_of
    from edgeinfer.engine.replicas import even_worker_pools, planned_worker_pools
    from edgeinfer.models.load import open_model
    from edgeinfer.scheduling.cost.work import work_of
    from edgeinfer.scheduling.machine.topology import read_topology

    load, n_replicas = settings.load, wanted.n_replicas
    if load.isolate and len(load.device_names) > 1:
        raise BadSetting("--isolate runs one device in a process of its own; a batch on two devices cannot be isolated")
    if wanted.vram_bytes is not None and len(load.device_names) < 2:
        raise BadSetting("--vram limits the memory of a device beside the cpu; use it with --device cpu,NAME")
    if load.device not in ("cpu", "auto"):
        if n_replicas not in (None, 1):
            raise BadSetting(f"replicas are for the cpu, not for {load.device}; leave --replicas out")
        return ()
    if n_replicas == 1 or (n_replicas is None and (load.cores is not None or load.threads is not None)):
        return ()
    if n_replicas is not None:
        cores = load.core_numbers or read_topology().workers()
        if load.threads is not None and load.threads < n_replicas:
            raise BadSetting(f"{n_replicas} replicas need at least as many threads; --threads allows {load.threads}")
        return even_worker_pools(cores[: load.threads], n_replicas)
    profile = kept_profile()
    if profile is None or len(profile.cpu.nodes) < 2:
        return ()
    try:
        with open_model(path, settings.load.n_context) as model:
            work, usual = work_of(model.spec, model.file.tensors), model.spec.n_context_usual
    except UnsupportedModel:  # another program may run the model, unsplit
        return ()
    return planned_worker_pools(profile, work, wanted.parallel, context_of(usual, settings.load.n_context), load.kv)


def _loaded(settings: Settings, model: LocalModel, parallel: int, cores: Cores | None, vram_bytes: int | None) -> LLM:
    """Load a model with KV cache for `parallel` answers, or for as many as fit."""
    from edgeinfer.engine.loading import load_with
    from edgeinfer.load_options import SequenceSharing

    options = replace(load_options(settings), race="first", sharing=SequenceSharing(vram_bytes))
    if cores is not None:
        options = replace(options, device="cpu", threads=None, cores=cores)
    parallel = beside_all_weights(settings, model.path, parallel)
    while True:
        try:
            with ProgressLine() as progress:
                return load_with(model, replace(options, n_sessions=parallel, progress=progress))
        except DoesNotFit:
            if parallel == 1:
                raise
            parallel //= 2


def beside_all_weights(settings: Settings, path: Path, parallel: int) -> int:
    """How many contexts leave room for all weights; `parallel` if the weights do not fit even beside a single one."""
    from edgeinfer.engine.kv.limits import context_of, limits_for, weights_bytes
    from edgeinfer.engine.offload.weight_placement import WeightBudget, fit_weights
    from edgeinfer.models.load import open_model

    load, n_context = settings.load, settings.load.n_context
    if parallel == 1 or load.device not in ("auto", "cpu"):
        return parallel
    try:
        with open_model(path, n_context) as model:
            length = context_of(model.spec.n_context_usual, n_context)
            ram_bytes = None if load.ram_bytes is None else weights_bytes(load.ram_bytes)

            def streams(n_sessions: int) -> bool:
                limits = limits_for(length, n_sessions, load.kv, model.spec)
                holding = WeightBudget(ram_bytes, n_sequences=n_sessions)
                return fit_weights(model.spec, model.file, limits, holding).budget_bytes is not None

            if streams(1):
                return parallel
            while parallel > 1 and streams(parallel):
                parallel //= 2
    except (DoesNotFit, UnsupportedModel):
        return parallel  # loading retries with fewer, or leaves it to another program
    return parallel
