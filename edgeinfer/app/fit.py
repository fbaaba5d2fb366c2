"""Whether a model fits this machine, from its header alone: the device's own count against the memory available.

In: a header, a device name, a context. Out: a `Plan`, or DoesNotFit with the numbers. Loads no weights, no compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgeinfer.graph.graph import ModelSpec
    from edgeinfer.models.gguf import Header, Metadata, TensorInfo
    from edgeinfer.scheduling.prediction import MeasuredSpeeds, Plan
    from edgeinfer.settings import KVKind, Settings


def plan_for(
    metadata: Metadata,
    tensors: Mapping[str, TensorInfo],
    *,
    device: str = "auto",
    n_context: int | None = None,
    kv: KVKind = "f16",
    n_workers: int | None = None,
    ram_bytes: int | None = None,
    speeds: MeasuredSpeeds | None = None,
    approx: float | None = None,
) -> tuple[ModelSpec, Plan]:
    """The model's spec and the plan to hold all of it on one device; `ram_bytes` replaces the available memory.

    Raises BadGGUF, UnsupportedModel, UnknownKey. A plan that does not fit is returned too: see `memory.missing_bytes`.
    """
    from edgeinfer.engine.kv.limits import context_of, limits_for, limits_with_states, memory_need
    from edgeinfer.engine.run.executor import AUTO_DEVICE
    from edgeinfer.models.load import spec_of
    from edgeinfer.scheduling import prediction as plan
    from edgeinfer.scheduling.machine import topology

    key = AUTO_DEVICE if device == "auto" else device
    spec = spec_of(metadata, tensors, n_context, approx)
    available = topology.available_bytes() if ram_bytes is None else ram_bytes
    limits = limits_for(context_of(spec.n_context_trained, n_context), kv=kv, spec=spec)
    need = memory_need(key, spec, tensors, limits_with_states(key, spec, tensors, limits, available))
    workers = n_workers or len(topology.usable_cores())
    return spec, plan.Plan(key, workers, len(spec.stages), need, available, speeds or plan.MeasuredSpeeds())


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
    from edgeinfer.errors import EdgeInferError
    from edgeinfer.scheduling.cost import memory
    from edgeinfer.scheduling.machine import topology

    available = topology.available_bytes() + freed_bytes
    try:
        spec, plan = plan_for(header.metadata, header.tensors, device=device, n_context=n_context)
    except EdgeInferError:
        memory.require_fit(memory.MemoryNeed(nbytes, 1, 0, 0, 0), available)
        return None
    if not memory.missing_bytes(plan.need, available):
        return None
    if device not in ("auto", "cpu"):
        memory.require_fit(plan.need, available)
    return _read_in_part(header, spec, plan.need.n_context, nbytes, freed_bytes)


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
    from edgeinfer.errors import DoesNotFit, UnsupportedModel
    from edgeinfer.scheduling.cost import memory

    header, load = require_model_file(path), settings.load
    if header is None:
        return
    try:
        _, plan = plan_for(header.metadata, header.tensors, n_context=load.n_context, kv=load.kv)
    except UnsupportedModel:  # another program may run the model
        return
    if load.ram_bytes is not None or memory.missing_bytes(plan.need, plan.available_bytes // 2):
        raise DoesNotFit(f"{path.name} has no room in memory beside the model that is open; close that one first")


def _read_in_part(header: Header, spec: ModelSpec, n_context: int, nbytes: int, freed_bytes: int) -> str | None:
    """The maximum speed of a model that does not fit as a whole. Raises DoesNotFit, also if the disk is full."""
    from edgeinfer.engine.kv.limits import limits_for, memory_for_model
    from edgeinfer.engine.offload.bundle_room import require_room_after_download
    from edgeinfer.engine.offload.weight_placement import WeightBudget, known_disk, planned_weights, streaming_text

    name, disk = header.metadata.text("general.name", "the model"), known_disk()
    available = memory_for_model() + freed_bytes if freed_bytes else None
    kept, _ = planned_weights(spec, header, name, limits_for(n_context, spec=spec), WeightBudget(), disk, available)
    if kept is None:
        return None
    require_room_after_download(name, nbytes, kept.total_bytes)
    return f"{name} does not fit in memory as a whole: {streaming_text(kept, disk)}"
