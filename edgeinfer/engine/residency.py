"""Where the weights of a model are while it runs: all in memory, or some of them and the rest in a bundle file.

In: a model, its limits, the memory for weights if somebody said how much. Out: limits that say where weights are, and
what to tell about it. Makes the bundle file where one is needed and may be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgeinfer.backends.base import Limits, Progress, Stored, no_progress
from edgeinfer.engine.limits import memory_need
from edgeinfer.engine.probing.machine import fingerprint_of
from edgeinfer.engine.profiles import ProfileStore
from edgeinfer.errors import BadBundle
from edgeinfer.models.bundle_places import bundle_path
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.spec import ModelSpec
from edgeinfer.scheduling.memory import RESERVE_SHARE, RUNTIME_BYTES, in_gigabytes, require_fit
from edgeinfer.scheduling.profile import Disk
from edgeinfer.scheduling.residency import Load, residency
from edgeinfer.scheduling.streaming import Kept, kept_of
from edgeinfer.scheduling.topology import available_bytes, read_topology, usable_cores

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.bundles.contents import Contents

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Holding:
    """How weights may be held. `ram_bytes`: of memory for them, None for what there is. `packs`: a file may be made."""

    ram_bytes: int | None = None
    packs: bool = True


class Described(Protocol):
    """A file, or its header alone."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...


def weights_budget(
    spec: ModelSpec, file: Described, limits: Limits, holding: Holding, available: int | None = None
) -> int | None:
    """Bytes of memory for weights if not all of them can stay, None if they can.

    `available` bytes on another machine (None: what there is here). Raises DoesNotFit where there is not even room for
    the rest.
    """
    need = memory_need(CPU, spec, file.tensors, limits)
    available = available_bytes() if available is None else available
    room = int(available * (1 - RESERVE_SHARE)) - need.kv_bytes - need.buffer_bytes - RUNTIME_BYTES
    budget = room if holding.ram_bytes is None else min(room, holding.ram_bytes)
    if need.weight_bytes <= budget:
        return None
    if room <= 0:
        require_fit(need, available)
    return budget


def kept_weights(contents: Contents, budget: int, disk: Disk | None, name: str) -> Kept:
    """What stays of a model's bundles in so much memory. Raises DoesNotFit for a hopeless plan."""
    loads = [Load(bundle.padded_bytes) for bundle in contents.bundles]
    return kept_of(loads, residency(loads, budget, disk, name))


def planned_weights(
    spec: ModelSpec,
    file: Described,
    name: str,
    limits: Limits,
    holding: Holding,
    disk: Disk | None,
    available: int | None = None,
) -> Kept | None:
    """What will stay of a model, from its header alone; None where all of it does. Raises as `stored`."""
    budget = weights_budget(spec, file, limits, holding, available)
    if budget is None:
        return None
    from edgeinfer.backends.cpu.bundles.contents import contents_of

    kept = kept_weights(contents_of(spec, file.tensors), budget, disk, name)
    return kept if kept.window_bytes else None


def stored(
    spec: ModelSpec,
    file: GGUFFile,
    name: str,
    fingerprint: str,
    limits: Limits,
    holding: Holding,
    progress: Progress = no_progress,
) -> tuple[Limits, tuple[str, ...]]:
    """Limits for the cpu with the place of weights, and notices. Makes the bundle file if there is none yet.

    Raises DoesNotFit where a token would take too long or nothing fits, BadBundle, and what packing raises.
    """
    budget = weights_budget(spec, file, limits, holding)
    if budget is None:
        return limits, ()
    from edgeinfer.backends.cpu.bundles.contents import contents_of

    contents = contents_of(spec, file.tensors)
    disk = known_disk()
    kept = kept_weights(contents, budget, disk, name)
    if not kept.window_bytes:
        return limits, ()
    path = _bundle_file(file, contents, name, fingerprint, holding, progress)
    found = kept.residency
    place = Stored(path, fingerprint, found.pinned, kept.pinned_bytes, found.window_bytes, found.n_readers)
    return replace(limits, stored=place), (told(kept, disk),)


def _bundle_file(
    file: GGUFFile, contents: Contents, name: str, fingerprint: str, holding: Holding, progress: Progress
) -> Path:
    """The bundle file of a model, made now if there is none that can be used."""
    from edgeinfer.backends.cpu.bundles.file import BundleFile

    path = bundle_path(name, fingerprint)
    try:
        BundleFile.open(path, contents, fingerprint).close()
    except BadBundle as reason:
        if not holding.packs:
            raise
        if path.exists():
            progress(f"making {path.name} anew ({reason})", 0, 1)
        _pack(path, file, contents, fingerprint, progress)
    return path


def _pack(path: Path, file: GGUFFile, contents: Contents, fingerprint: str, progress: Progress) -> None:
    from edgeinfer.backends.cpu.bundles.writing import pack_bundles
    from edgeinfer.backends.cpu.library import KernelLibrary

    pack_bundles(path, file, contents, fingerprint, KernelLibrary(), len(usable_cores()), progress)


def known_disk() -> Disk | None:
    """The disk as it was measured on this machine, if it was."""
    profile = ProfileStore().find(fingerprint_of(read_topology()))
    return None if profile is None else profile.disk


def told(kept: Kept, disk: Disk | None) -> str:
    """What happens in every pass, in a sentence."""
    read, total = in_gigabytes(kept.flash_bytes), in_gigabytes(kept.total_bytes)
    text = f"{read} of the {total} of weights are read from disk for every token"
    if disk is None:
        return f"{text}; edgeinfer probe measures how fast that is"
    seconds = kept.streamed.seconds(disk)
    rate = kept.streamed.nbytes / seconds
    return f"{text}: {1 / seconds:.3g} tok/s at most, one at a time, at {rate / 1e9:.2g} GB/s"
