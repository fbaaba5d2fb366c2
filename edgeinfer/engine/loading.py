"""Loading a model: the implementation of `edgeinfer.load`.

In: a model's name or path and the device to run it on. Out: an open `LLM`. Downloads nothing, installs no signal
handlers, prints nothing.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.engine.kv.limits import (
    context_of,
    limits_for,
    limits_on,
    limits_with_states,
    memory_for_model,
    pass_limits,
    weights_bytes,
    with_budget,
    with_kv_ram,
)
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.model_info import ModelInfo
from edgeinfer.engine.offload.weight_placement import WeightBudget, fit_weights, place_and_pack, ram_for_both
from edgeinfer.engine.opening.comparison import Comparison
from edgeinfer.engine.opening.device_choice import Choices, ChosenDevice, CompareDevices, DeviceChoice, chosen_device
from edgeinfer.engine.opening.doubts import doubtful
from edgeinfer.engine.opening.evaluator import approximate_on, open_evaluator
from edgeinfer.engine.opening.keywords import with_keywords_of
from edgeinfer.engine.opening.kv_ram import require_kv_ram, require_weights_in_memory
from edgeinfer.engine.opening.reuse import reusing, told_of_reuse, why_exact
from edgeinfer.engine.opening.seeing import open_seeing
from edgeinfer.engine.requests.texts import chosen_template, program_texts, texts_beside
from edgeinfer.engine.run.evaluators import SequenceEvaluator, Subject, is_own, only_device, other_device
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.run.workers import device_options, known_core_plans, shared_cores, worker_kinds
from edgeinfer.engine.running import OpenModel, RunningNote
from edgeinfer.engine.speculation.draft_model import split_sources
from edgeinfer.engine.speculation.heads import HeadInFile, chosen_head, showing_rows
from edgeinfer.engine.speculation.self_draft import with_self_drafts
from edgeinfer.engine.speculation.setup import LaterDrafts, Loops, ModelDrafting, drafts_for, may_draft_later
from edgeinfer.engine.two_models.setup import require_both, second_bytes, told_of_two, two_models_for, with_two_models
from edgeinfer.errors import BadSetting, DeviceFailed, DeviceUnavailable, DoesNotFit, OtherKindOfModel, UnsupportedModel
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import left_out, spec_of
from edgeinfer.models.rope import told_of_factors
from edgeinfer.models.store import LocalModel, ModelStore
from edgeinfer.models.variants import told as told_of
from edgeinfer.scheduling.cost.memory import require_fit
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.topology import CoreKind, Topology, read_topology
from edgeinfer.setting_values import KVKind, Race
from edgeinfer.settings import CTX_CAP
from edgeinfer.steps import Progress
from edgeinfer.text_values import share_text, size_text

AUTO = "auto"
"""The fastest device for the model, as far as that is known."""
RACING = "edgeinfer.engine.racing"
Choose = Callable[[Progress], ChosenDevice]


def load_with(model: str | Path | LocalModel, options: LoadOptions) -> LLM:
    """Load a model that is on this machine, by name or path or as found, with a record of options. Raises as `load`."""
    started = time.perf_counter()
    require_kv_ram(options)
    options = reusing(with_two_models(replace(options, device=approximate_on(options.device, options.approximation))))
    chosen_template(options)  # a mistake in it is told before the model is opened
    local = model if isinstance(model, LocalModel) else ModelStore().find(str(model))
    options, notices = _with_memory_in_bytes(options.with_adapters(local.adapters))
    if options.device == AUTO and (only := only_device(local.path)) is not None:
        options = replace(options, device=only)
    with RunningNote(OpenModel(local.name, local.path, is_loading=True)):
        return _load_somewhere(local, options, started, notices)


@with_keywords_of(LoadOptions)
def load(name_or_path: str | Path, options: LoadOptions) -> LLM:
    """Load a model that is on this machine, by its name in `edgeinfer models` or the path of its file.

        llm = edgeinfer.load("SmolLM2-135M-Instruct", n_context=2048)
        llm.close()

    n_context    context in tokens of each of `n_sessions` sessions; None: the length the model was trained for, at most
                 CTX_CAP
    device       device name, or several names separated by commas; several devices share the model by a plan
    schedule     how several devices share it; "auto" picks the plan predicted to be fastest, possibly the cpu alone
    threads      number of worker threads
    cores        processors to use
    kv           kind of the KV cache: "f16", or "q8", "q8q4", "q4" in about 1/2, 2/5, 1/3 of its memory, rounded more
    mode         how much of the machine may be used; never changes the text: "max", "balanced" (less when the machine
                 is hot or its battery low), "quiet" or "battery"
    isolate      run the device in a separate process; if it crashes, another one reads the text again
    ram_bytes    memory for weights, in bytes or as "3GB" or "60%"; if they do not fit, the cpu reads the rest from a
                 bundle file in every pass, with the same answer
    packs        allow writing the bundle file if it is missing
    kv_ram       memory for keys and values, as "500MB"; the rest is on disk; with a budget of attention, cpu only
    approx       not exact, cpu only: what is left out, as `--approx` has it: 0.05, "kv=1024", "prefill=2048", several
    chat_template
                 name of a built-in template in place of the model's own; or chat_template_file, the path of one
    lora         LoRA adapters: GGUF files, each as "FILE" or "FILE:SCALE", the scale of requests that state none
    spec         speculation: "auto" drafts tokens and verifies several per pass where this changes none of them, "on"
                 always drafts, "off" never; a number: passes of that many tokens, or as many as the mode allows
    verify_cost  cost of passes by their number of tokens, used instead of the measured cost
    draft_from   files and folders of text to draft from as well, and at most one smaller model with the same
                 vocabulary, or trained head (EAGLE-3, MTP, assistant) made for the model, by file or name
    history      keep what drafting learns from texts in the user's data folder and use it next time, and compute the
                 tables that drafts come from while nothing is generated, except in the power-saving modes
    reuse        "shifted" does not read text again that stands elsewhere in an earlier prompt, as after a changed line:
                 its cached keys are turned to their new positions; answers are then not exact; cpu only
    prefix_cache keep on disk what was read of texts, in pages of keys and values, and take prompts that begin with it
                 from there, in `prefix_space` bytes in all; changes no token; where passes are batch-invariant

    `LoadOptions` has the rest: mmproj, self_draft, small_model and hand_over (two models write one answer, not exact),
    n_sessions, parallel, rows, race, sharing, progress.
    Raises ModelNotFound, BadGGUF, UnsupportedModel, DoesNotFit, DeviceUnavailable, UnknownKey, BadSetting, BadTemplate.
    """
    return load_with(name_or_path, options)


def _with_memory_in_bytes(options: LoadOptions) -> tuple[LoadOptions, tuple[str, ...]]:
    """Options with the weight budget in bytes, and a notice of what a share of memory comes to."""
    if options.ram_bytes is None or isinstance(options.ram_bytes, int):
        return options, ()
    ram_bytes = weights_bytes(options.ram_bytes)
    share = share_text(options.ram_bytes, ram_bytes)
    return replace(options, ram_bytes=ram_bytes), () if share is None else (f"weights may take {share}",)


def _holding(options: LoadOptions, subject: Subject) -> WeightBudget:
    """The weight budget that the options ask for."""
    assert not isinstance(options.ram_bytes, str)
    n_sequences, beside = options.parallel or options.n_sessions, subject.encoder_bytes(options.device)
    return WeightBudget(options.ram_bytes, options.packs, n_sequences=n_sequences, encoder_bytes=beside)


def _load_somewhere(local: LocalModel, options: LoadOptions, started: float, notices: tuple[str, ...]) -> LLM:
    """Load a model as the options say; if the cpu cannot run it and no device is named, on another device."""
    try:
        return _load(local, options, started, notices)
    except UnsupportedModel as reason:
        if options.device != AUTO or isinstance(reason, OtherKindOfModel):
            raise
        own_reason, other = reason, other_device(reason)
    notices += (f"{other} runs this model, for edgeinfer itself cannot: {own_reason}",)
    try:
        return _load(local, replace(options, device=other), started, notices)
    except UnsupportedModel as reason:
        raise UnsupportedModel(f"{own_reason}; and {reason}") from None


def _load(local: LocalModel, options: LoadOptions, started: float, notices: tuple[str, ...]) -> LLM:
    """Load a model as the options say."""
    device = AUTO_DEVICE if options.device == AUTO else options.device
    subject, told = open_seeing(local.path, replace(options, device=device), local.source)
    notices += told
    try:
        if options.device == AUTO and subject.projector is None and not _must_stream(subject, options):
            return _start_fastest(subject, local.name, options, started, notices)
        return _start(subject, local.name, replace(options, device=device), started, notices)
    except BaseException:
        subject.close()
        raise


def _must_stream(subject: Subject, options: LoadOptions) -> bool:
    """Whether only a part of the weights may stay in memory, which only the cpu supports."""
    if subject.spec is None:
        return False
    n_context = context_of(subject.spec.n_context_usual, options.n_context)
    limits = limits_for(n_context, options.n_sessions, options.kv, subject.spec)
    try:
        return fit_weights(subject.spec, subject.gguf, limits, _holding(options, subject)).budget_bytes is not None
    except DoesNotFit:  # opened for the cpu, it is refused with what would fit
        return True


def _start_fastest(subject: Subject, name: str, options: LoadOptions, started: float, notices: tuple[str, ...]) -> LLM:
    """Compile an open model for the fastest device, or for the cpu if that device turns out to be unable to run it."""
    choices = Choices()
    arguments = subject, read_topology(), _staff(options, subject)[0]

    def choose(race: Race, progress: Progress) -> ChosenDevice:
        compare = None if race == "never" else _comparing(*arguments, options.kv, progress)
        return chosen_device(*arguments, kv=options.kv, race=race, compare=compare, choices=choices)

    def choose_again(progress: Progress) -> ChosenDevice:
        with choices.alone():
            return choose("first", progress)

    found = choose("never" if options.isolate else options.race, options.progress)
    later = choose_again if found.compares_later else None
    notices += () if found.notice is None else (found.notice,)
    try:
        return _start(subject, name, replace(options, device=found.device), started, notices, later)
    except (DeviceUnavailable, DeviceFailed, DoesNotFit, UnsupportedModel) as reason:
        if found.device == AUTO_DEVICE:
            raise
        choices.forget(found.device)
        notices += (f"{found.device}, the fastest for this model, cannot run it ({reason}): the cpu does",)
    return _start(subject, name, replace(options, device=AUTO_DEVICE), started, notices, later)


def _comparing(
    subject: Subject, topology: Topology, workers: DeviceOptions, kv: KVKind, progress: Progress
) -> CompareDevices | None:
    """What compares the devices with a model, imported when it does; None if its folder is missing."""
    found = importlib.util.find_spec(RACING)
    if found is None or found.origin is None:
        return None

    def compare() -> tuple[DeviceChoice, str | None]:
        from edgeinfer.engine.racing.contestant import compared

        return compared(subject, topology, workers, kv, progress)

    return compare


def _staff(options: LoadOptions, subject: Subject) -> tuple[DeviceOptions, tuple[CoreKind, ...]]:
    """The options to open a device with, and the kind of each worker's core."""
    topology, spec = read_topology(), subject.spec
    is_asked = options.threads is not None or options.cores is not None
    plans = None
    if not is_asked and spec is not None:
        plans = known_core_plans(topology, work_of(spec, subject.file.tensors), options.kv)
    workers = device_options(topology, options.threads, options.cores, plans)
    return workers, worker_kinds(workers, topology)


def _held(
    subject: Subject, name: str, options: LoadOptions, limits: Limits
) -> tuple[Subject, Limits, LoadOptions, tuple[str, ...]]:
    """Limits with the weight placement on the cpu; drops the draft model or head if memory has no room for it too."""
    holding, progress = _holding(options, subject), options.progress
    if (head := HeadInFile.of(subject)) is not None:
        beside = head.need(options.device, limits, all_stay=False).beside_bytes
    else:
        beside = second_bytes(options, limits)
    own = subject.fingerprint if subject.approx.is_exact else fingerprint(subject.gguf)
    assert subject.spec is not None
    arguments = (subject.spec, subject.gguf, name, own, limits)
    try:
        found, notices = place_and_pack(*arguments, replace(holding, beside_bytes=beside), progress)
        if head is not None:
            beside = head.need(options.device, found, all_stay=found.stored is None).beside_bytes
        taken = beside + subject.memory_need(options.device, found).weight_bytes
        if not beside or holding.ram_bytes is None or taken <= holding.ram_bytes:
            return subject, found, options, notices
        reason = f"both take {size_text(taken)} and may have {size_text(holding.ram_bytes)}"
    except DoesNotFit as refusal:
        if not beside:
            raise
        reason = str(refusal)
        found, notices = place_and_pack(*arguments, holding, progress)
    reason += ram_for_both(subject.spec, subject.gguf, name, limits, holding, beside)
    require_both(options, beside, reason)
    if head is not None:
        head.close()
    texts, path = split_sources(options.draft_from)
    second = "its own head" if path is None else path.name
    notices += (f"nothing is drafted by {second}, which takes {size_text(beside)} beside {name}: {reason}",)
    return replace(subject, head=None), found, replace(options, draft_from=texts), notices


def _fitting(
    subject: Subject, name: str, options: LoadOptions
) -> tuple[Subject, Limits, int, LoadOptions, tuple[str, ...]]:
    """The model for its context, its limits, its trained context length, options with draft sources, and notices.

    Raises DoesNotFit if memory is short.
    """
    file, spec, notices = subject.file, subject.spec, told_of_reuse(subject, options)
    metadata, tensors = file.metadata, file.tensors
    if spec is None:
        trained = metadata.integer(f"{metadata.text('general.architecture')}.context_length", CTX_CAP)
        limits = limits_for(context_of(trained, options.n_context), options.n_sessions, options.kv)
        require_fit(subject.memory_need(options.device, limits), memory_for_model())
        return subject, limits, trained, options, notices
    trained, adapters = spec.n_context_trained, subject.gguf.adapters
    n_context = context_of(spec.n_context_usual, options.n_context)
    approx, how = subject.approx, (n_context, subject.approx.threshold)
    spec = spec_of(metadata, tensors, *how, rows=subject.rows, adapters=adapters, block_budget=approx.prefill)
    head = chosen_head(subject, options, n_context) if spec.is_causal else None
    spec = showing_rows(spec, head)
    subject = replace(subject, spec=spec, head=head)
    limits = limits_for(n_context, options.n_sessions, options.kv, spec)
    limits = with_kv_ram(with_budget(limits, spec, approx.kv), options.kv_ram_bytes)
    limits = with_self_drafts(limits_on(options.device, spec, tensors, limits), subject, options)
    if not spec.is_causal:  # reads whole texts in one pass and generates none
        limits = replace(limits, max_tokens=max(limits.max_tokens, n_context))
        options = replace(options, spec="off")
    own = subject.projector is not None and subject.projector.file.path == subject.gguf.path
    left = left_out(spec, metadata, tensors, head, reads_images=own)
    parts = (f"left out of {name}: {part}" for part in left)
    notices += (*told_of(subject.approx, n_context), *parts, *map(str, adapters), *told_of_factors(spec, n_context))
    if options.device == AUTO_DEVICE:
        subject, limits, options, more = _held(subject, name, options, limits)
        require_weights_in_memory(name, limits)
        notices += more
    elif options.ram_bytes is not None:
        raise BadSetting(
            f"only the cpu reads weights from disk while it runs: use --device cpu with --ram, not {options.device}"
        )
    else:
        sizes = memory_for_model(), options.parallel or options.n_sessions
        limits = limits_with_states(options.device, spec, tensors, limits, *sizes)
    if limits.stored is None:
        require_fit(subject.memory_need(options.device, limits), memory_for_model())
    limits, told = pass_limits(spec, limits)
    return subject, limits, trained, options, notices + told


def _start(
    subject: Subject,
    name: str,
    options: LoadOptions,
    started: float,
    notices: tuple[str, ...],
    choose_later: Choose | None = None,
) -> LLM:
    """Compile an open model for its device. `choose_later`: chooses one for the next start, after an answer."""
    subject, limits, trained, options, told = _fitting(subject, name, options)
    workers, kinds = _staff(options, subject)
    drafts_later = options.race == "after" and not options.isolate and may_draft_later(options)
    loops = None if drafts_later or options.spec == "off" else Loops()
    executor: SequenceEvaluator | None = None
    try:
        power_limiter = PowerLimiter.of_machine(options.mode, kinds)
        with ThreadPoolExecutor(1) as beside:
            texts = texts_beside(subject, options, beside) if is_own(options.device) else None
            if options.isolate:
                from edgeinfer.engine.isolation.isolated import Isolated

                executor = Isolated.open(subject.file, limits, workers, options, kinds, power_limiter)
            else:
                executor = open_evaluator(subject, limits, workers, options, power_limiter)
            tokenizer, template = texts.result() if texts is not None else program_texts(subject, options, executor)
        if loops is not None and loops.must_measure(options, executor, subject.fingerprint):
            loops, drafts_later = None, True
        head, own = HeadInFile.of(subject), (executor, tokenizer, subject.fingerprint, options)
        drafts, draft_notices = drafts_for(*own, loops, options.progress, head)
        two_models = two_models_for(options, tokenizer, pool := Pool(executor, writes=subject.writes))
    except BaseException:
        if executor is not None:
            executor.close()
        raise
    subject.release()
    notices += told + executor.notices + draft_notices + template.notices + told_of_two(two_models)
    facts = ModelInfo(
        name=name,
        path=subject.file.path,
        fingerprint=subject.fingerprint,
        architecture=subject.file.metadata.text("general.architecture"),
        device=executor.device,
        n_context=limits.n_context,
        n_context_trained=trained,
        kv=options.kv,
        n_threads=workers.n_workers or len(workers.cores or ()),
        mode=options.mode,
        load_s=time.perf_counter() - started,
        resident_bytes=executor.resident_bytes,
        notices=notices + doubtful(options, executor.device, limits.n_context, trained),
        approximation=subject.approx,
        cores=shared_cores(workers, read_topology()),
        need=subject.memory_need(options.device, executor.limits),
    )
    # a full successor table takes hundreds of passes, each of which would read from disk
    primes = options.history and limits.stored is None
    comparison = None if choose_later is None else Comparison(choose_later, lambda: pool.idle_s, executor.device)
    drafting = ModelDrafting(drafts, LaterDrafts(*own, head) if drafts_later else None, primes)
    model, reuse = (subject, pool, tokenizer, template, facts, drafting), (options.reuse, why_exact(subject, options))
    parallel, kept = options.parallel, options.prefix_bytes
    return LLM(*model, parallel=parallel, comparison=comparison, prefix_bytes=kept, reuse=reuse, two_models=two_models)
