"""Opening what runs a model: our own devices by name, several by a plan, or another program; with a rescue on failure.

In: a subject, limits, names of devices. Out: an evaluator of sequences; and kernels in the cache, compiled ahead while
a model is being downloaded. Reads no files, loads no text.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from edgeinfer.approximation import Approximation
from edgeinfer.backends.base import DeviceOptions, Limits, device_kind, kind_of, require_budgets, require_kv
from edgeinfer.backends.evaluator import EvaluatorKind
from edgeinfer.engine.kv.limits import memory_need
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.opening.devices import OpeningRequest, open_model
from edgeinfer.engine.run.evaluators import SequenceEvaluator, Subject, is_own
from edgeinfer.engine.run.executor import AUTO_DEVICE, AUTO_SCHEDULE, Executor
from edgeinfer.engine.run.foreign import ForeignExecutor
from edgeinfer.engine.run.rescue import Rescued, RescuedBatches
from edgeinfer.errors import BadSetting, EdgeInferError, UnsupportedModel
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.variants import check_threshold
from edgeinfer.scheduling.batch.schedules import NAMES as BATCH_SCHEDULES
from edgeinfer.scheduling.cost.memory import require_fit
from edgeinfer.scheduling.machine.topology import available_bytes
from edgeinfer.settings import KVKind

NEVER_RESCUED = ("cpu", "reference", "null")
"""Our own devices that have no fallback to continue on after a failure."""
ABLE = (AUTO_DEVICE, "reference")
"""Devices that can skip small activations."""


def open_executor(
    device: str,
    request: OpeningRequest,
    fingerprint: str,
    power_limiter: PowerLimiter | None = None,
    schedule: str = AUTO_SCHEDULE,
) -> Executor:
    """Open devices by name and compile the model for them. Raises as `devices.open_model`."""
    opened = open_model(device, request, schedule)
    return Executor(
        opened.device,
        opened.lane,
        request.limits,
        fingerprint,
        request.options,
        power_limiter=power_limiter,
        notices=opened.notices,
        inputs=request.spec.inputs,
    )


def open_evaluator(
    subject: Subject,
    limits: Limits,
    options: DeviceOptions,
    load: LoadOptions,
    power_limiter: PowerLimiter | None = None,
) -> SequenceEvaluator:
    """Open a model on one device by name, or on several by a plan; if a device fails, the cpu takes over.

    If `load.sharing` is set, two devices share sequences, unless the schedule is one for single passes.
    Raises UnknownKey, DeviceUnavailable, DoesNotFit, UnsupportedModel, BadSetting.
    """
    device, schedule, progress = load.device, load.schedule, load.progress
    kind = subject.program or (None if is_own(device) else kind_of(device))
    if isinstance(kind, EvaluatorKind):
        return ForeignExecutor.open(kind, device, subject, limits, options, progress, power_limiter)
    if subject.spec is None:
        raise UnsupportedModel(f"{subject.file.path} can only be run with another device than {device}")
    spec, file = subject.spec, subject.gguf
    require_kv(device, limits.kv)
    request = OpeningRequest(spec, file, limits, options, progress)

    def rescue() -> SequenceEvaluator:
        require_fit(memory_need(AUTO_DEVICE, spec, file.tensors, limits), available_bytes())
        return open_executor(AUTO_DEVICE, request, subject.fingerprint, power_limiter)

    if schedule in BATCH_SCHEDULES or ("," in device and load.sharing is not None and schedule == AUTO_SCHEDULE):
        from edgeinfer.engine.opening.overlap import open_batch

        vram_bytes = None if load.sharing is None else load.sharing.vram_bytes
        shared = open_batch(device, request, schedule, vram_bytes, power_limiter)
        if shared.capabilities.overlapping is not None:
            return RescuedBatches(shared, rescue)
        executor = shared
    else:
        executor = open_executor(device, request, subject.fingerprint, power_limiter, schedule)
    return executor if executor.device in NEVER_RESCUED else Rescued(executor, rescue)


def approximate_on(device: str, approx: Approximation) -> str:
    """The device to use: the requested one, or the cpu if something is left out. Raises BadSetting."""
    if approx.is_exact:
        return device
    if approx.threshold is not None:
        check_threshold(approx.threshold)
        if device not in ("auto", *ABLE):
            raise BadSetting(
                f"{device} does not leave small activations out: use --device cpu with --approx, or neither"
            )
    if approx.prefill is not None and device not in ("auto", *ABLE):
        raise BadSetting(
            f"{device} attends to all that was before: use --device cpu with --approx prefill=N, or neither"
        )
    device = AUTO_DEVICE if device == "auto" else device
    if approx.kv is not None:
        require_budgets(device)
    return device


def compile_ahead(kv: KVKind, ggml_types: Sequence[int]) -> threading.Thread:
    """Start a thread that compiles the kernels a Llama with these types needs, unless they are in the cache."""
    thread = threading.Thread(target=_compile, args=(kv, ggml_types), name="edgeinfer-ahead", daemon=True)
    thread.start()
    return thread


def _compile(kv: KVKind, ggml_types: Sequence[int]) -> None:
    compile_for = device_kind("cpu").compile_ahead
    assert compile_for is not None
    try:
        compile_for(kv, ggml_types)
    except (EdgeInferError, OSError):  # opening the model will report it
        return
