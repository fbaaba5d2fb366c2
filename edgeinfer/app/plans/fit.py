"""The sizes of a model, each with one name and one meaning for all commands and screens, and whether they fit here.

file      its files on the disk
weights   in memory, in the device's own form; image encoder: the part for one, whose buffers count as buffers
KV cache  keys and values for the whole context (in layers with a window: for the window and some more tokens), and the
          states of models whose sequences have them
buffers   working buffers of a pass; drafts: the part for logits of several tokens, most of them drafts
program   Python, libraries and compiled kernels
memory    the sum of weights, KV cache, buffers and program

In: a header, a device name, a context; the device's own count, a `MemoryNeed`, against the available memory. Out: text
and JSON; a `Plan`, or DoesNotFit with the numbers. Loads no weights and no compiler, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from edgeinfer.approximation import EXACT, Approximation
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, MemoryNeed, missing_bytes, would_fit
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from edgeinfer.graph.graph import ModelSpec
    from edgeinfer.models.gguf import Header, Metadata, TensorInfo
    from edgeinfer.models.gguf.adapter import Adapter
    from edgeinfer.models.projector_file import ProjectorFacts
    from edgeinfer.scheduling.prediction import Plan
    from edgeinfer.settings import KVKind, Settings


def memory_record(need: MemoryNeed, available_bytes: int | None = None) -> dict[str, object]:
    """Memory and its parts as JSON; keys may be added, never renamed."""
    return {
        "weight_bytes": need.weight_bytes,
        "encoder_bytes": need.encoder_bytes,
        "kv_bytes": need.kv_bytes,
        "state_bytes": need.state_bytes,
        "window_bytes": need.window_bytes,
        "kv_file_bytes": need.kv_file_bytes,
        "buffer_bytes": need.buffer_bytes,
        "draft_bytes": need.draft_bytes,
        "program_bytes": PROGRAM_BYTES,
        "total_bytes": need.total_bytes,
        "n_context": need.n_context,
        "available_bytes": available_bytes,
    }


def memory_text(need: MemoryNeed, available_bytes: int | None = None) -> str:
    """Memory and its parts as text."""
    there_is = "" if available_bytes is None else f" of {size_text(available_bytes)} available"
    return f"{size_text(need.total_bytes)}{there_is}: {need.parts_text}"


def memory_line(need: MemoryNeed, peak_bytes: int | None) -> str:
    """Memory of a loaded model beside its process's peak, which may be lower, as the KV cache fills gradually."""
    used = "" if peak_bytes is None else f"; the process held {size_text(peak_bytes)} at most"
    return f"memory: {memory_text(need)}{used}"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a model fits a machine.

    need             memory it takes there
    available_bytes  available memory; `vram_bytes`: of each accelerator that takes part
    whole            what the entire model would take, if weights are read from disk in every pass
    refusal          why it cannot be run, "" if it can
    remedy           what would fit, if not even a part of the weights has room; "" for other refusals
    """

    need: MemoryNeed
    available_bytes: int
    whole: MemoryNeed | None = None
    refusal: str = ""
    remedy: str = ""
    vram_bytes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def missing_bytes(self) -> int:
        """Bytes of memory missing for the entire model; 0 if it fits."""
        if self.whole is None and not self.refusal:
            return 0
        return missing_bytes(self.whole or self.need, self.available_bytes)

    @property
    def would_fit(self) -> str:
        """What would fit instead."""
        return self.remedy or would_fit(self.whole or self.need, self.available_bytes)

    @property
    def line(self) -> str:
        """The result as text."""
        missing = self.missing_bytes
        lack = f"{size_text(missing)} ({missing} bytes) too much; {self.would_fit}"
        if self.refusal:
            return f"no, {lack}" if missing and not self.remedy else f"no: {self.refusal}"
        if self.whole is not None:
            in_part = "in part: weights without room are read from disk in every pass"
            return f"{in_part}; all of it is {lack}" if missing else in_part
        accelerators = "".join(f" and {size_text(n_bytes)} of {name}" for name, n_bytes in self.vram_bytes.items())
        return f"in {size_text(self.available_bytes)} of memory{accelerators}"

    @property
    def record(self) -> dict[str, object]:
        """The result as JSON."""
        missing = self.missing_bytes
        return {
            "fits": not self.refusal,
            "in_part": self.whole is not None and not self.refusal,
            "missing_bytes": missing,
            "would_fit": self.would_fit if missing else None,
        }


class ReadHeader(Protocol):
    """What a plan reads of a header, of a file or of its first bytes."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...


def plan_for(
    header: ReadHeader,
    *,
    device: str = "auto",
    n_context: int | None = None,
    kv: KVKind = "f16",
    n_workers: int | None = None,
    ram_bytes: int | None = None,
    approx: Approximation = EXACT,
    kv_ram: int | None = None,
    adapters: Sequence[Adapter] = (),
    n_sessions: int = 1,
    projector: ProjectorFacts | None = None,
) -> tuple[ModelSpec, Plan]:
    """The model's spec and the plan to hold all of it on one device; `ram_bytes` replaces the available memory.

    `adapters`: those opened with the file. `n_sessions`: conversations of full length that the KV cache holds.
    `kv_ram`: bytes of it in memory; None: all. `projector`: with which the model reads images.

    Raises BadGGUF, UnsupportedModel, UnknownKey. A plan that does not fit is returned too: see `memory.missing_bytes`.
    """
    from edgeinfer.engine.kv.limits import (
        context_of,
        limits_for,
        limits_with_states,
        memory_need,
        with_budget,
        with_encoder,
        with_kv_ram,
    )
    from edgeinfer.engine.run.executor import AUTO_DEVICE
    from edgeinfer.models.gguf.tensor_scales import with_scales
    from edgeinfer.models.load import spec_of
    from edgeinfer.scheduling.machine import topology
    from edgeinfer.scheduling.prediction import MeasuredSpeeds, Plan

    key, tensors = AUTO_DEVICE if device == "auto" else device, with_scales(header.tensors, "the header")
    how = n_context, approx.threshold
    rows = projector is not None
    spec = spec_of(header.metadata, tensors, *how, rows=rows, adapters=adapters, block_budget=approx.prefill)
    available = topology.available_bytes() if ram_bytes is None else ram_bytes
    limits = limits_for(context_of(spec.n_context_usual, n_context), n_sessions, kv, spec)
    limits = with_kv_ram(with_budget(limits, spec, approx.kv), kv_ram)
    need = memory_need(key, spec, tensors, limits_with_states(key, spec, tensors, limits, available))
    need = need if projector is None else with_encoder(need, key, projector)
    workers = n_workers or len(topology.usable_cores())
    return spec, Plan(key, workers, len(spec.stages), need, available, MeasuredSpeeds())


def approve_quietly(header: Header, nbytes: int) -> None:
    """Approve a model that fits. Raises DoesNotFit, with the numbers, for others, because there is no user to ask."""
    check_fits(header, nbytes)


def check_fits(
    header: Header, nbytes: int, device: str = "auto", n_context: int | None = None, *, freed_bytes: int = 0
) -> str | None:
    """A note on a model of which only a part fits in memory and the rest is read in every pass; None for others.

    `nbytes` is the size of the file; `freed_bytes` of memory become free before the model is loaded. If edgeinfer
    cannot plan from the header, only that size is checked, so that a vocabulary or a model for another program can
    still be pulled. Raises DoesNotFit, with the numbers and what would work, for a model too large for this machine, or
    for its disk together with the bundle file that it needs.
    """
    from edgeinfer.engine.opening.seeing import fetched_projector
    from edgeinfer.errors import EdgeInferError
    from edgeinfer.scheduling.cost import memory
    from edgeinfer.scheduling.machine import topology

    available = topology.available_bytes() + freed_bytes
    projector = fetched_projector(header)
    try:
        spec, plan = plan_for(header, device=device, n_context=n_context, projector=projector)
    except EdgeInferError:
        memory.require_fit(memory.MemoryNeed(nbytes, 1, 0, 0, 0), available)
        return None
    if not memory.missing_bytes(plan.need, available):
        return None
    if device not in ("auto", "cpu"):
        memory.require_fit(plan.need, available)
    return _read_in_part(header, spec, plan.need.n_context, nbytes, freed_bytes, projector)


def require_model_file(path: Path) -> Header | None:
    """The header of a model file; None for a folder with a decoder. Raises BadGGUF if it is not a model."""
    from edgeinfer.models.decoder_folder import is_decoder_folder
    from edgeinfer.models.download.header import file_header

    return None if is_decoder_folder(path) else file_header(path)


def require_room_beside(path: Path, settings: Settings) -> None:
    """Check that a model may be loaded while another one is open. Raises DoesNotFit, or BadGGUF if it is not a model.

    Half of the available memory has to stay free: devices are raced while it is loaded, and weights placed partly on
    disk because of a model that is closed soon would remain there.
    """
    from edgeinfer.engine.opening.seeing import projector_facts
    from edgeinfer.errors import DoesNotFit, UnsupportedModel
    from edgeinfer.scheduling.cost import memory

    header, load = require_model_file(path), settings.load
    if header is None:
        return
    try:
        projector, _ = projector_facts(path, header, load)
        _, plan = plan_for(header, n_context=load.n_context, kv=load.kv, projector=projector)
    except UnsupportedModel:  # another program may run the model
        return
    if load.ram_bytes is not None or memory.missing_bytes(plan.need, plan.available_bytes // 2):
        raise DoesNotFit(f"{path.name} has no room in memory beside the model that is open; close that one first")


def _read_in_part(
    header: Header, spec: ModelSpec, n_context: int, nbytes: int, freed_bytes: int, projector: ProjectorFacts | None
) -> str | None:
    """The maximum speed of a model that does not fit as a whole. Raises DoesNotFit, also if the disk is full."""
    from edgeinfer.engine.kv.limits import encoder_bytes, limits_for, memory_for_model
    from edgeinfer.engine.offload.bundle_room import require_room_after_download
    from edgeinfer.engine.offload.weight_placement import (
        CPU,
        WeightBudget,
        known_disk,
        planned_weights,
        streaming_text,
    )

    name, disk = header.metadata.text("general.name", "the model"), known_disk()
    available = memory_for_model() + freed_bytes if freed_bytes else None
    holding, limits = WeightBudget(encoder_bytes=encoder_bytes(CPU, projector)), limits_for(n_context, spec=spec)
    kept, _ = planned_weights(spec, header, name, limits, holding, disk, available)
    if kept is None:
        return None
    require_room_after_download(name, nbytes, kept.total_bytes)
    return f"{name} does not fit in memory as a whole: {streaming_text(kept, disk)}"
