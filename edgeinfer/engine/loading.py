"""Loading a model: what is behind `edgeinfer.load`.

In: a model's name or path and what to run it on. Out: an open `LLM`. Pulls nothing from the network, installs no signal
handler, prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.measure.power_limiter import PowerLimiter
from edgeinfer.engine.model_info import ModelInfo
from edgeinfer.engine.multi import AUTO as AUTO_SCHEDULE
from edgeinfer.engine.offload.residency import Holding, room_for, stored
from edgeinfer.engine.opening import approximate_on, open_evaluator
from edgeinfer.engine.probing.racing.afterwards import Comparison
from edgeinfer.engine.probing.racing.choices import Choices
from edgeinfer.engine.probing.racing.choosing import ChosenDevice, Race, chosen_device
from edgeinfer.engine.requests.texts import Texts, check_vocabulary, own_texts, texts_with
from edgeinfer.engine.run.evaluators import (
    SequenceEvaluator,
    SequenceSharing,
    Subject,
    is_own,
    only_device,
    open_subject,
    other_device,
)
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.engine.run.limits import (
    context_of,
    limits_for,
    limits_on,
    limits_with_states,
    memory_for_model,
    pass_limits,
)
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.run.staffing import device_options, known_core_plans, shared_cores, worker_kinds
from edgeinfer.engine.running import OpenModel, RunningNote
from edgeinfer.engine.speculation.second_model import draft_bytes, split_sources
from edgeinfer.engine.speculation.setup import LaterDrafts, Loops, Speculation, drafts_for, may_draft_later
from edgeinfer.errors import BadSetting, DeviceFailed, DeviceUnavailable, DoesNotFit, UnsupportedModel
from edgeinfer.models.fingerprint import fingerprint
from edgeinfer.models.load import left_out, spec_of
from edgeinfer.models.store import LocalModel, ModelStore
from edgeinfer.models.text import vocabulary_of
from edgeinfer.models.thresholds import told as told_of
from edgeinfer.scheduling.cost.memory import require_fit
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.topology import CoreKind, read_topology
from edgeinfer.settings import CTX_CAP, KVKind, Mode, Spec
from edgeinfer.size_text import size_text
from edgeinfer.steps import Progress, no_progress

AUTO = "auto"
"""The device that is fastest for the model, as far as that was found out."""


def load(
    name_or_path: str | Path,
    *,
    device: str = AUTO,
    schedule: str = "auto",
    n_context: int | None = None,
    threads: int | None = None,
    cores: Sequence[int] | None = None,
    n_sessions: int = 1,
    kv: KVKind = "f16",
    mode: Mode = "balanced",
    isolate: bool = False,
    ram_bytes: int | None = None,
    packs: bool = True,
    approx: float | None = None,
    rows: bool = False,
    spec: Spec = "auto",
    verify_cost: Mapping[int, float] | None = None,
    draft_from: Sequence[str | Path] = (),
    history: bool = False,
    race: Race = "never",
    sharing: SequenceSharing | None = None,
    parallel: int | None = None,
    progress: Progress = no_progress,
) -> LLM:
    """Load a model that is on this machine.

    `device`: a name, or several with commas between them, which then share the model by a plan; `schedule` says how,
    "auto" as is predicted to be fastest, which may be the cpu alone. `race`: at first use of a model "auto" is
    found by trying all there are ("first"), or is the cpu until they are compared after an answer ("after", of small
    models); else it is the one found so before, or the cpu.
    `n_context` tokens (default: what it was trained for, CTX_CAP at most) for each of `n_sessions` whose whole context
    is kept at a time; more sessions may be open, and read their text again when memory is short. `kv`: how keys and
    values are kept; "int8" takes about half the memory of "f16" and rounds more. `mode`: how much of the machine may
    be used, which changes no text: "max", "balanced" (less when it is hot or its battery low), "quiet" or "battery".
    `isolate`: the device runs in a process of its own, and if it crashes there another one reads the text again.
    `ram_bytes`: of memory for weights (None: what there is); where they do not fit, the cpu reads the rest from a
    bundle file in every pass, which is written first if need be and `packs` allows it; the answer is the same.
    `approx`: smaller activations count as zero, which saves reading and gives another answer; for the cpu alone.
    `rows`: prompts may have rows of numbers (`PromptRows`) among their tokens; for the cpu alone.
    `spec`: "auto" drafts tokens and checks several in a pass where that changes none of them, "on" everywhere, "off"
    nowhere, a number: that many tokens a pass, or as many as the mode allows; `verify_cost` is assumed instead of what
    passes of several tokens cost here. Drafts also come from the files and folders `draft_from`, and from a smaller
    model with the same vocabulary, if its file or name is among them. `history`: what is learnt of texts is kept in
    the user's data folder and used the next time, and tables that drafts come from are made while nothing is generated,
    except in the sparing modes. `sharing`: the model is for batches, whose sequences two devices share by the
    schedule predicted to be fastest in every pass, or the named one. `parallel`: requests at a time, for whose states
    there must be room; more wait. `progress` is called with what is done, how much of it and how much there is.
    Raises ModelNotFound, BadGGUF, UnsupportedModel, DoesNotFit, DeviceUnavailable, UnknownKey, BadSetting.
    """
    started = time.perf_counter()
    _check(n_sessions, kv, mode, parallel)
    speculation = Speculation(spec, verify_cost or {}, tuple(map(Path, draft_from)), history)
    local = ModelStore().find(str(name_or_path))
    wanted = _Wanted(
        device=approximate_on(device, approx),
        race=race,
        schedule=schedule,
        sharing=sharing,
        parallel=parallel,
        n_context=n_context,
        n_sessions=n_sessions,
        kv=kv,
        mode=mode,
        isolate=isolate,
        holding=Holding(ram_bytes, packs, n_sequences=parallel or n_sessions),
        approx=approx,
        rows=rows,
        threads=threads,
        cores=cores,
        speculation=speculation,
        progress=progress,
    )
    if wanted.device == AUTO and (only := only_device(local.path)) is not None:
        wanted = replace(wanted, device=only)
    with RunningNote(OpenModel(local.name, local.path, is_loading=True)):
        return _load_somewhere(local, wanted, started)


def _load_somewhere(local: LocalModel, wanted: _Wanted, started: float) -> LLM:
    """Load a model as it is wanted; on another device where the cpu cannot run it and nobody named one."""
    try:
        return _load(local, wanted, started)
    except UnsupportedModel as reason:
        if wanted.device != AUTO:
            raise
        own_reason, other = reason, other_device(reason)
    notice = f"{other} runs this model, for edgeinfer itself cannot: {own_reason}"
    try:
        return _load(local, replace(wanted, device=other), started, (notice,))
    except UnsupportedModel as reason:
        raise UnsupportedModel(f"{own_reason}; and {reason}") from None


def _check(n_sessions: int, kv: KVKind, mode: Mode, parallel: int | None) -> None:
    """Raise BadSetting for what cannot be."""
    if parallel is not None and parallel < 1:
        raise BadSetting(f"parallel cannot be {parallel}: it must be 1 or more")
    if n_sessions < 1:
        raise BadSetting(f"n_sessions cannot be {n_sessions}: it must be 1 or more")
    if kv not in get_args(KVKind):
        raise BadSetting(f"kv cannot be {kv!r}: it must be {' or '.join(get_args(KVKind))}")
    if mode not in get_args(Mode):
        raise BadSetting(f"mode cannot be {mode!r}: it must be {' or '.join(get_args(Mode))}")


def _load(local: LocalModel, wanted: _Wanted, started: float, notices: tuple[str, ...] = ()) -> LLM:
    """Load a model as it is wanted."""
    device = AUTO_DEVICE if wanted.device == AUTO else wanted.device
    subject = open_subject(local.path, device, wanted.n_context, wanted.approx, rows=wanted.rows)
    try:
        if wanted.device == AUTO and not _must_stream(subject, wanted):
            return _start_fastest(subject, local.name, wanted, started, notices)
        return _start(subject, local.name, replace(wanted, device=device), started, notices)
    except BaseException:
        subject.file.close()
        raise


def _must_stream(subject: Subject, wanted: _Wanted) -> bool:
    """Whether only a part of the weights may stay in memory, which the cpu alone copes with."""
    if subject.spec is None:
        return False
    n_context = context_of(subject.spec.n_context_trained, wanted.n_context)
    limits = limits_for(n_context, wanted.n_sessions, wanted.kv, subject.spec)
    return room_for(subject.spec, subject.gguf, limits, wanted.holding).budget_bytes is not None


def _start_fastest(subject: Subject, name: str, wanted: _Wanted, started: float, notices: tuple[str, ...]) -> LLM:
    """Compile an open model for the device found fastest, or for the cpu where that one cannot run it after all."""
    choices, race = Choices(), wanted.race if not wanted.isolate else "never"
    arguments = subject, read_topology(), _staff(wanted, subject)[0]
    found = chosen_device(*arguments, kv=wanted.kv, race=race, progress=wanted.progress, choices=choices)
    if found.compares_later:

        def compare(progress: Progress) -> ChosenDevice:
            with choices.alone():
                return chosen_device(*arguments, kv=wanted.kv, race="first", progress=progress, choices=choices)

        wanted = replace(wanted, compare=compare)
    notices += () if found.notice is None else (found.notice,)
    try:
        return _start(subject, name, replace(wanted, device=found.device), started, notices)
    except (DeviceUnavailable, DeviceFailed, DoesNotFit, UnsupportedModel) as reason:
        if found.device == AUTO_DEVICE:
            raise
        choices.forget(found.device)
        notices += (f"{found.device}, the fastest for this model, cannot run it ({reason}): the cpu does",)
    return _start(subject, name, replace(wanted, device=AUTO_DEVICE), started, notices)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What `load` was asked for, besides the model."""

    device: str
    race: Race
    schedule: str
    sharing: SequenceSharing | None
    parallel: int | None
    n_context: int | None
    n_sessions: int
    kv: KVKind
    mode: Mode
    isolate: bool
    holding: Holding
    approx: float | None
    rows: bool
    threads: int | None
    cores: Sequence[int] | None
    speculation: Speculation
    progress: Progress
    compare: Callable[[Progress], ChosenDevice] | None = None


def _staff(wanted: _Wanted, subject: Subject) -> tuple[DeviceOptions, tuple[CoreKind, ...]]:
    """What a device is opened with, and the kind of each worker's core."""
    topology, spec = read_topology(), subject.spec
    is_asked = wanted.threads is not None or wanted.cores is not None
    plans = None
    if not is_asked and spec is not None:
        plans = known_core_plans(topology, work_of(spec, subject.file.tensors), wanted.kv)
    options = device_options(topology, wanted.threads, wanted.cores, plans)
    return options, worker_kinds(options, topology)


def _held(subject: Subject, name: str, wanted: _Wanted, limits: Limits) -> tuple[Limits, Speculation, tuple[str, ...]]:
    """Limits with the place of weights on the cpu; a draft model for which memory has no room beside is left out."""
    speculation, holding, progress = wanted.speculation, wanted.holding, wanted.progress
    beside = 0 if speculation.spec == "off" else draft_bytes(speculation.draft_from, limits)
    own = subject.fingerprint if subject.approx is None else fingerprint(subject.gguf)
    assert subject.spec is not None
    arguments = (subject.spec, subject.gguf, name, own, limits)
    try:
        found, notices = stored(*arguments, replace(holding, beside_bytes=beside), progress)
        taken = beside + subject.memory_need(wanted.device, found).weight_bytes
        if not beside or holding.ram_bytes is None or taken <= holding.ram_bytes:
            return found, speculation, notices
        reason = f"both take {size_text(taken)} and may have {size_text(holding.ram_bytes)}"
    except DoesNotFit as refusal:
        if not beside:
            raise
        reason = str(refusal)
        found, notices = stored(*arguments, holding, progress)
    texts, path = split_sources(speculation.draft_from)
    assert path is not None
    notices += (f"nothing is drafted by {path.name}, which takes {size_text(beside)} beside {name}: {reason}",)
    return found, replace(speculation, draft_from=texts), notices


def _fitting(subject: Subject, name: str, wanted: _Wanted) -> tuple[Subject, Limits, int, Speculation, tuple[str, ...]]:
    """The model for its context, its limits, the context it was trained with, what may draft for it, and notices.

    Raises DoesNotFit where memory is short.
    """
    file, spec = subject.file, subject.spec
    metadata, tensors = file.metadata, file.tensors
    if spec is None:
        trained = metadata.integer(f"{metadata.text('general.architecture')}.context_length", CTX_CAP)
    else:
        trained = spec.n_context_trained
    n_context = context_of(trained, wanted.n_context)
    if spec is None:
        limits = limits_for(n_context, wanted.n_sessions, wanted.kv)
        require_fit(subject.memory_need(wanted.device, limits), memory_for_model())
        return subject, limits, trained, wanted.speculation, ()
    spec, speculation = spec_of(metadata, tensors, n_context, subject.approx, rows=subject.rows), wanted.speculation
    subject = replace(subject, spec=spec)
    limits = limits_on(wanted.device, spec, tensors, limits_for(n_context, wanted.n_sessions, wanted.kv, spec))
    if not spec.is_causal:  # whole texts in one pass, and none is written
        limits = replace(limits, max_tokens=max(limits.max_tokens, n_context))
        speculation = replace(speculation, spec="off")
    notices: tuple[str, ...] = () if subject.approx is None else (told_of(subject.approx),)
    notices += tuple(f"left out of {name}: {part}" for part in left_out(spec, metadata, tensors))
    if wanted.device == AUTO_DEVICE:
        limits, speculation, more = _held(subject, name, replace(wanted, speculation=speculation), limits)
        notices += more
    elif wanted.holding.ram_bytes is not None:
        raise BadSetting(
            f"only the cpu reads weights from disk while it runs: use --device cpu with --ram, not {wanted.device}"
        )
    else:
        sizes = memory_for_model(), wanted.holding.n_sequences
        limits = limits_with_states(wanted.device, spec, tensors, limits, *sizes)
    if limits.stored is None:
        require_fit(subject.memory_need(wanted.device, limits), memory_for_model())
    limits, told = pass_limits(spec, limits)
    return subject, limits, trained, speculation, notices + told


def _start(subject: Subject, name: str, wanted: _Wanted, started: float, notices: tuple[str, ...]) -> LLM:
    """Compile an open model for its device."""
    subject, limits, trained, speculation, told = _fitting(subject, name, wanted)
    options, kinds = _staff(wanted, subject)
    drafts_later = wanted.race == "after" and not wanted.isolate and may_draft_later(speculation)
    loops = None if drafts_later or speculation.spec == "off" else Loops()
    executor: SequenceEvaluator | None = None
    try:
        power_limiter = PowerLimiter.of_machine(wanted.mode, kinds)
        with ThreadPoolExecutor(1) as beside:
            texts = None
            if is_own(wanted.device) and subject.spec is not None:
                vocabulary = vocabulary_of(subject.file.metadata)
                check_vocabulary(subject.file.path, vocabulary.n_tokens, subject.spec.n_vocab)
                texts = beside.submit(own_texts, subject.file.metadata, vocabulary)
            if wanted.isolate:
                from edgeinfer.engine.run.isolation.isolated import Isolated

                places = wanted.mode, kinds, power_limiter, wanted.progress, wanted.schedule, subject.approx
                executor = Isolated.open(wanted.device, subject.file, limits, options, *places, rows=subject.rows)
            else:
                arguments = (subject, limits, options, wanted.progress, power_limiter, wanted.schedule, wanted.sharing)
                executor = open_evaluator(wanted.device, *arguments)
            tokenizer, template = texts.result() if texts is not None else _program_texts(subject, executor)
        drafts, draft_notices = drafts_for(
            executor, tokenizer, subject.fingerprint, speculation, loops, wanted.progress
        )
    except BaseException:
        if executor is not None:
            executor.close()
        raise
    subject.file.release()
    notices += told + executor.notices + draft_notices
    notices += _doubtful(wanted, executor.device, limits.n_context, trained)
    facts = ModelInfo(
        name=name,
        path=subject.file.path,
        fingerprint=subject.fingerprint,
        architecture=subject.file.metadata.text("general.architecture"),
        device=executor.device,
        n_context=limits.n_context,
        n_context_trained=trained,
        kv=wanted.kv,
        n_threads=options.n_workers or len(options.cores or ()),
        mode=wanted.mode,
        load_s=time.perf_counter() - started,
        resident_bytes=executor.resident_bytes,
        notices=notices,
        approx=subject.approx,
        cores=shared_cores(options, read_topology()),
        need=subject.memory_need(wanted.device, executor.limits),
    )
    # a table of every token's successors takes hundreds of passes, each of which would read from disk
    primes = wanted.speculation.history and limits.stored is None
    pool = Pool(executor, writes=subject.spec is None or subject.spec.is_causal)
    comparison = None if wanted.compare is None else Comparison(wanted.compare, lambda: pool.idle_s, executor.device)
    own = subject, pool, tokenizer, template, facts, drafts
    later = LaterDrafts(executor, tokenizer, subject.fingerprint, speculation) if drafts_later else None
    return LLM(*own, primes=primes, parallel=wanted.parallel, comparison=comparison, later_drafts=later)


def _doubtful(wanted: _Wanted, device: str, n_context: int, trained: int) -> tuple[str, ...]:
    """What was asked for and may not be what was meant."""
    notices: tuple[str, ...] = ()
    if wanted.schedule != AUTO_SCHEDULE and "," not in wanted.device:
        notices += (
            f"schedule {wanted.schedule} says how several devices share a model and changes nothing on "
            f"{device} alone; --device cpu,openvino, say, names two",
        )
    if n_context > trained:
        notices += (f"a context of {n_context} tokens is more than the {trained} this model was trained for",)
    return notices


def _program_texts(subject: Subject, executor: SequenceEvaluator) -> Texts:
    """Tokenizer and template of a model that another program runs."""
    program = executor.capabilities.program
    assert program is not None
    texts = texts_with(subject.file.metadata, program.text)
    check_vocabulary(subject.file.path, texts[0].n_tokens, program.n_vocab)
    return texts
