"""The interface through which the engine runs models: evaluators of batches of sequences, and what they can do.

`SequenceEvaluator` takes tokens and returns logits, and accounts for sequences and memory. `Executor` implements it on
devices, `ForeignExecutor` on another program, `Isolated` in a separate process. `open_evaluator` is the only place that
decides which of them a device name stands for. What only some evaluators have is in `EvaluatorCapabilities`, a frozen
record of protocols with None for those it lacks, so that a type checker sees what callers use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.backends.base import DEVICES, DeviceKind, Limits, OpSeconds, device_kinds, kind_of
from edgeinfer.backends.capabilities import Scratch
from edgeinfer.backends.evaluator import EvaluatorKind, ProgramText, StopFlag
from edgeinfer.engine.kv.limits import encoder_bytes, memory_need, unknown_need, with_encoder
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.jit.memory import trim_heap
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.decoder_folder import DecoderFolder, is_decoder_folder, open_folder
from edgeinfer.models.file_facts import approximate, fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import OpenHead, open_model, spec_of
from edgeinfer.models.projector_file import ProjectorFile
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.batch.schedules import Schedule
from edgeinfer.scheduling.cost.memory import MemoryNeed
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.engine.kv.cached_pages import CachedPages
    from edgeinfer.engine.kv.shifted import ShiftedTokens
    from edgeinfer.engine.run.observed import LastStep
    from edgeinfer.engine.shared_lane.lane import SharedLane


class Interruptible(Protocol):
    """An evaluator that can interrupt a pass: `evaluate` then raises Interrupted."""

    def heed(self, stopped: StopFlag | None) -> None:
        """Interrupt later passes as soon as this flag is set."""
        ...


class ModelProgram(Protocol):
    """An evaluator that reads the model file itself, without a ModelSpec."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_context_trained(self) -> int: ...

    @property
    def text(self) -> ProgramText: ...


class BufferReader(Protocol):
    """An evaluator that can show the contents of the model's buffers."""

    def show(self, name: str) -> Floats:
        """The rows of a buffer after the last pass: float32[T or O, width]."""
        ...


class StepTimes(Protocol):
    """An evaluator that reports how long steps and ops took."""

    @property
    def last_step(self) -> LastStep | None:
        """None where no workers share a step."""
        ...

    def time_ops(self, n_cached: int) -> Sequence[OpSeconds]:
        """Run a one-token pass after about this many tokens and return the time of each op; () where not measured.

        Nothing else may run meanwhile, as for `evaluate`.
        """
        ...


class Eventful(Protocol):
    """An evaluator that has notices for its user."""

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call."""
        ...


@dataclass(slots=True)
class Tally:
    """Totals of a schedule's passes: measured and predicted seconds, tokens made and tokens predicted.

    A token that is part of the way through the model counts as that fraction.
    """

    n_passes: int = 0
    seconds: float = 0.0
    predicted_s: float = 0.0
    n_tokens: float = 0.0
    predicted_tokens: float = 0.0


class Overlapping(Protocol):
    """An evaluator that keeps batches of several sequences in flight; callers need not wait for all of them."""

    def create(self, n_tokens: int | None = None) -> int:
        """A new empty sequence that may grow to this many tokens; None: to the whole context."""
        ...

    def advance(self, batches: Sequence[Batch]) -> Mapping[int, Floats]:
        """Start these batches, one for each sequence with none in flight, then run a pass over all in-flight batches.

        Returns logits by sequence for the batches that are done: float32[O, V], valid until the next call. Commit them
        before that call (the path given to `commit` holds indices within the sequence's own batch).
        """
        ...

    @property
    def in_flight(self) -> frozenset[int]:
        """Sequences with a batch in flight."""
        ...

    @property
    def tallies(self) -> Mapping[Schedule, Tally]:
        """Totals by schedule."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluatorCapabilities:
    """Optional capabilities of an evaluator.

    interruptible  can interrupt passes
    program        reads the model file itself
    showing        shows the contents of buffers
    step_times     reports how long steps and ops took
    eventful       has notices for its user
    overlapping    keeps batches in flight that callers need not wait for
    shared         the lane over several devices, where they share the model
    scales         of the model's LoRA adapters, in passes that state none; () if passes cannot state any
    shifted        moves cached tokens to other positions
    scratch        memory that can be given back between passes
    """

    interruptible: Interruptible | None = None
    program: ModelProgram | None = None
    showing: BufferReader | None = None
    step_times: StepTimes | None = None
    eventful: Eventful | None = None
    overlapping: Overlapping | None = None
    shared: SharedLane | None = None
    scales: tuple[float, ...] = ()
    pages: CachedPages | None = None
    shifted: ShiftedTokens | None = None
    scratch: Scratch | None = None


class SequenceEvaluator(Protocol):
    """One model, ready to evaluate. One call at a time (callers hold a lock). Close it after use."""

    power_limiter: PowerLimiter

    @property
    def capabilities(self) -> EvaluatorCapabilities:
        """Its optional capabilities. Only `shared`, `showing` and `step_times` may change, with the device in use."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices that apply from the start."""
        ...

    @property
    def reading(self) -> WeightReads:
        """Weights that passes have read so far because they do not stay in memory, and activations they skipped."""
        ...

    @property
    def batch_invariant(self) -> bool: ...

    @property
    def device(self) -> str: ...

    @property
    def n_workers(self) -> int: ...

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def resident_bytes(self) -> int: ...

    @property
    def n_free_pages(self) -> int: ...

    @property
    def peaks(self) -> Floats | None: ...

    def create(self) -> int: ...

    def branch(self, sequence: int) -> int: ...

    def free(self, sequence: int) -> None: ...

    def truncate(self, sequence: int, n_cached: int) -> int: ...

    def n_cached(self, sequence: int) -> int: ...

    def evaluate(self, batch: Batch) -> Floats: ...

    def commit(self, sequence: int, path: Int32s) -> None: ...

    def pretend(self, sequence: int, n_tokens: int) -> None: ...

    def save(self, sequence: int) -> bytes: ...

    def restore(self, sequence: int, state: bytes) -> None: ...

    def beside(
        self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits, progress: Progress = no_progress
    ) -> SequenceEvaluator: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to run. `spec`: None for a model that only another program can read.

    `program`: the program that opens it, where the file's form decides that; otherwise the device name decides.
    `approx`: what is left out. `rows`: whether prompts may contain rows.
    `head`: the trained head that drafts for it, if any; `spec` then shows it hidden rows. `source`: where the store has
    it from; a name of Ollama's says more than the file. `projector`: with the encoder of its images, if it has one.
    """

    file: GGUFFile | DecoderFolder
    spec: ModelSpec | None
    fingerprint: str
    program: EvaluatorKind | None = None
    approx: Approximation = EXACT
    rows: bool = False
    head: OpenHead | None = None
    source: str = ""
    projector: ProjectorFile | None = None

    @property
    def gguf(self) -> GGUFFile:
        """The file of a model that has a spec."""
        assert isinstance(self.file, GGUFFile)
        return self.file

    @property
    def writes(self) -> bool:
        """Whether it can continue texts; if not, it only reads them, for embeddings."""
        return self.spec is None or self.spec.is_causal

    def memory_need(self, device: str, limits: Limits) -> MemoryNeed:
        """The memory the model takes on a device under these limits, from the header alone. Raises UnknownKey."""
        if self.spec is None:
            return unknown_need(self.file.metadata, self.file.tensors, limits)
        need, projector = memory_need(device, self.spec, self.file.tensors, limits), self.projector
        return need if projector is None else with_encoder(need, device, projector.facts)

    def encoder_bytes(self, device: str) -> int:
        """Bytes of the encoder of its images on a device; 0 for none."""
        return encoder_bytes(device, None if self.projector is None else self.projector.facts)

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        if self.projector is not None:
            self.projector.close()

    def release(self) -> None:
        """Give memory back once all is loaded: pages of the file, and what tokenizer and drafts were made from."""
        self.file.release()
        trim_heap()


def is_own(device: str) -> bool:
    """Whether a device, or every one of several separated by commas, runs ops of our own graph.

    Raises UnknownKey, and BadSetting for a mix of devices that do and devices that do not.
    """
    names = device.split(",")
    others = [name for name in names if not isinstance(kind_of(name), DeviceKind)]
    if others and len(names) > 1:
        raise BadSetting(f"device cannot be {device}: {others[0]} runs whole models by itself; name it alone")
    return not others


def open_subject(path: Path, load: LoadOptions) -> Subject:
    """The model of a file, to be run on a device with a context (None: the trained one) under the given options.

    Raises ModelNotFound, BadGGUF, UnknownKey, BadSetting, and UnsupportedModel where the device needs something that
    edgeinfer lacks.
    """
    device, n_context, approx, rows = load.device, load.n_context, load.approximation, load.rows
    if is_decoder_folder(path):
        if load.adapters:
            raise BadSetting(f"{path} is a folder with an ONNX decoder, to which no LoRA adapter can be added")
        return replace(_folder_subject(path, device), rows=rows)
    if is_own(device):
        how = approx.threshold, approx.prefill
        model = open_model(path, n_context, how[0], rows=rows, adapters=load.adapters, block_budget=how[1])
        own = approximate(fingerprint(model.file), *how)
        return Subject(model.file, model.spec, own, approx=approx, rows=rows)
    if load.adapters:
        raise BadSetting(f"{device} applies no LoRA adapters in edgeinfer; use --device cpu with --lora")
    file = GGUFFile.open(path)
    try:
        spec = _spec_if_known(file, n_context)
    except BaseException:
        file.close()
        raise
    return Subject(file, spec, fingerprint(file), rows=rows)


def _spec_if_known(file: GGUFFile, n_context: int | None) -> ModelSpec | None:
    """The spec of a file for a program that may support more models than edgeinfer; None if only the program reads it.

    Raises UnsupportedModel for a model that generates no text: the program's logits would be meaningless.
    """
    try:
        return spec_of(file.metadata, file.tensors, n_context)
    except (UnsupportedModel, BadGGUF):
        family = file.metadata.text("general.architecture")
        if not file.metadata.flag(f"{family}.attention.causal", True):
            raise UnsupportedModel(f"{family} reads texts as a whole and writes none") from None
        return None


def only_device(path: Path) -> str | None:
    """The one device that runs models of this form; None where several may."""
    return next(iter(_folder_programs()), None) if is_decoder_folder(path) else None


def _folder_programs() -> dict[str, EvaluatorKind]:
    """The programs that open folders with a decoder, by device."""
    return {key: kind.folders for key, kind in device_kinds().items() if kind.folders is not None}


def _folder_subject(path: Path, device: str) -> Subject:
    programs = _folder_programs()
    program = programs.get(device.partition(":")[0]) if is_own(device) and "," not in device else None
    if program is None:
        raise UnsupportedModel(
            f"{path} is a folder with an ONNX decoder, which {device} does not run; "
            f"use --device {' or '.join(programs)}"
        )
    folder = open_folder(path)
    return Subject(folder, None, folder.fingerprint, program)


def other_device(reason: UnsupportedModel) -> str:
    """A program that may run what our own devices cannot. Raises UnsupportedModel, saying what to install, if none."""
    programs = [kind for kind in DEVICES.entries().values() if isinstance(kind, EvaluatorKind)]
    for program in programs:
        if program.installed:
            return program.key
    may = "; ".join(f"{program.key} may run it: {program.install}" for program in programs)
    raise UnsupportedModel(f"{reason}; {may}") from None
