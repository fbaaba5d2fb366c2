"""Decides where the weights of a model are while it runs: all in memory, or some there and the rest in a bundle file.

In: a model, its limits, the weight budget if one was given. Out: limits that say where weights are, and notices.
Creates the bundle file if one is needed and may be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from edgeinfer.backends.base import Limits, device_kind
from edgeinfer.backends.offload import BundlePacking, BundleSizes, WeightOffload
from edgeinfer.engine.kv.limits import limits_with_states, memory_for_model, memory_need
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.offload.bundle_room import require_room_for_bundles
from edgeinfer.engine.offload.least_memory import fits, no_room
from edgeinfer.engine.offload.record_plans import record_plans
from edgeinfer.errors import BadBundle, DoesNotFit
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.load import Model
from edgeinfer.models.variants import has_threshold
from edgeinfer.offload.bundle_file import NEURONS, WHOLE, bundle_path, pack_options
from edgeinfer.offload.weights import OffloadedWeights, Prepacked
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, RESERVE_SHARE, enough, fewer_sequences, require_fit
from edgeinfer.scheduling.machine.profile import Disk
from edgeinfer.scheduling.machine.topology import read_topology, usable_cores
from edgeinfer.scheduling.offload.reads import SMALL_READERS, read_times
from edgeinfer.scheduling.offload.streaming import Streamed, StreamedModel, streamed_model
from edgeinfer.scheduling.offload.weight_placement import (
    ExpertLoads,
    RecordLoads,
    SlowDisk,
    WeightPiece,
    WeightPlacement,
    place_mixture,
    place_weights,
    room_for_staying,
)
from edgeinfer.steps import Progress, no_progress
from edgeinfer.text_values import size_text

CPU = "cpu"
EXACT = 64
"""A budget that is searched for is too large by one part in this many at most."""
STAYS = 2.0
"""Uses of a piece that must stay: more than those of any other piece."""


@dataclass(frozen=True, slots=True)
class WeightBudget:
    """The weight budget. `ram_bytes`: memory for weights, None for all there is. `packs`: a bundle file may be written.

    If not all weights stay, `beside_bytes` of that memory are for a second model. `n_sequences`: a pass must have room
    for this many, with their states, and has room for more as memory allows. `encoder_bytes`: available memory that is
    for an image encoder.
    """

    ram_bytes: int | None = None
    packs: bool = True
    beside_bytes: int = 0
    n_sequences: int = 1
    encoder_bytes: int = 0


SMALLER_PASSES = (128, 64)
"""Tokens of a pass where memory is too short for the buffers of larger ones."""


def smaller_passes(limits: Limits, max_tokens: int, n_sequences: int = 1) -> Limits:
    """Limits with passes of `max_tokens`, and in proportion fewer rows of logits, most of which are for drafts."""
    max_outputs = max(n_sequences, limits.max_outputs * max_tokens // limits.max_tokens)
    return replace(limits, max_tokens=max_tokens, max_outputs=min(limits.max_outputs, max_outputs))


def cpu_offload() -> WeightOffload:
    """The CPU device's way to run models whose weights do not all stay in memory; no other device has one."""
    offload = device_kind(CPU).offload
    assert offload is not None
    return offload()


class TensorTable(Protocol):
    """A file, or only its header."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...


@dataclass(frozen=True, slots=True)
class WeightFit:
    """What memory has room for: `budget_bytes` of weights, None for all of them, under limits with smaller passes."""

    budget_bytes: int | None
    limits: Limits


def fit_weights(
    spec: ModelSpec, file: TensorTable, limits: Limits, holding: WeightBudget, available: int | None = None
) -> WeightFit:
    """How many weights may stay in memory; passes shrink if that makes room for the requested amount.

    Checkpoints of states are given up before weights. `available` bytes on another machine (None: this one's). Raises
    DoesNotFit if there is not even room for the rest.
    """
    available = (memory_for_model() if available is None else available) - holding.encoder_bytes
    room = _room(spec, file, limits, holding, available)
    if spec.states and room.budget_bytes is not None:
        sizes = available, holding.n_sequences, holding.ram_bytes
        fewer = limits_with_states(CPU, spec, file.tensors, limits, *sizes)
        other = _room(spec, file, fewer, holding, available)
        if other.budget_bytes is None or room.budget_bytes <= 0:
            room = other
    if room.budget_bytes is None:
        return room
    if room.budget_bytes <= 0:
        require_fit(memory_need(CPU, spec, file.tensors, room.limits), available)
    return replace(room, budget_bytes=max(0, room.budget_bytes - holding.beside_bytes))


def _room(spec: ModelSpec, file: TensorTable, limits: Limits, holding: WeightBudget, available: int) -> WeightFit:
    """The same for the given slots for states; a budget that is not positive means there is no room for the rest."""
    budget, passes = 0, limits
    for max_tokens in (limits.max_tokens, *SMALLER_PASSES):
        passes = smaller_passes(limits, max_tokens, holding.n_sequences)
        need = memory_need(CPU, spec, file.tensors, passes)
        room = int(available * (1 - RESERVE_SHARE)) - need.kv_bytes - need.buffer_bytes - PROGRAM_BYTES
        budget = room if holding.ram_bytes is None else min(room, holding.ram_bytes)
        if need.weight_bytes <= budget:
            return WeightFit(None, passes)
        if budget == holding.ram_bytes or (holding.ram_bytes is None and room > need.buffer_bytes):
            break
    return WeightFit(budget, passes)


def chosen_layout(
    spec: ModelSpec, file: TensorTable, budget: int, disk: Disk | None, name: str, fingerprint: str | None = None
) -> StreamedModel:
    """What stays of a model within a budget, and whether layers are read by records or whole: whichever is faster.

    `fingerprint`: of the file, to consider what earlier runs counted. Raises DoesNotFit for a hopeless plan.
    """
    plans, sizes_of = record_plans(), cpu_offload().sizes
    sizes = sizes_of(spec, file.tensors, plans is not None)
    if plans is None or sizes.records is None:
        return streamed_within(sizes, spec, budget, disk, name)
    ways, failure = list[StreamedModel](), None
    for each in (sizes, sizes_of(spec, file.tensors, False)):
        try:
            ways.append(streamed_within(each, spec, budget, disk, name, fingerprint))
        except DoesNotFit as reason:
            failure = failure or reason
    if failure is not None and not ways:
        raise failure
    return plans.choose(ways, disk)


def streamed_within(
    sizes: BundleSizes, spec: ModelSpec, budget: int, disk: Disk | None, name: str, fingerprint: str | None = None
) -> StreamedModel:
    """What stays of a model's bundles within a budget. Raises DoesNotFit for a hopeless plan."""
    records = record_loads(sizes, spec, fingerprint)
    found = placement_of(sizes, spec, budget, disk, name, records)
    return streamed_model(_dense_loads(sizes), found, _expert_loads(sizes, spec), records, disk)


def placement_of(
    sizes: BundleSizes, spec: ModelSpec, budget_bytes: int, disk: Disk | None, what: str, records: RecordLoads | None
) -> WeightPlacement:
    """Numbers of a model's bundles that stay within a budget; `records` as `record_loads`. Raises DoesNotFit."""
    dense, experts = _dense_loads(sizes), _expert_loads(sizes, spec)
    numbers, loads = tuple(dense), tuple(dense.values())
    if experts is not None:
        found = place_mixture(loads, experts, budget_bytes, disk, what)
    elif records is not None:
        found = records.place(loads, budget_bytes, disk, what)
    else:
        found = place_weights(loads, budget_bytes, disk, what)
    pinned = frozenset(numbers[place] for place in found.pinned)
    staying = {number: load.nbytes for number, load in dense.items() if load.uses == STAYS}
    if not pinned.issuperset(staying):
        works = room_for_staying(loads, experts, disk, sum(staying.values()))
        works += 0 if records is None else records.least_room
        raise DoesNotFit(
            f"{enough(budget_bytes)} of memory for the weights of {what} is too little: what all experts or neurons "
            f"share must stay there; {enough(works)} would work"
        )
    return replace(found, pinned=pinned)


def _dense_loads(sizes: BundleSizes) -> dict[int, WeightPiece]:
    """Bundles that every pass needs, by number."""
    dense = [bundle for bundle in sizes.bundles if bundle.is_dense]
    return {bundle.number: WeightPiece(bundle.padded_bytes, STAYS if bundle.stays else 1.0) for bundle in dense}


def _expert_loads(sizes: BundleSizes, spec: ModelSpec) -> ExpertLoads | None:
    """Bundles of which every token needs some; None if there are none."""
    mixtures = [op for op in spec.ops() if isinstance(op, Experts) and op.active < op.count]
    if not mixtures:
        return None
    largest, used = max(bundle.padded_bytes for bundle in sizes.experts), sum(op.active for op in mixtures)
    return ExpertLoads(len(sizes.experts), largest, used, max(op.active for op in mixtures))


def planned_weights(
    spec: ModelSpec,
    file: TensorTable,
    name: str,
    limits: Limits,
    holding: WeightBudget,
    disk: Disk | None,
    available: int | None = None,
    fingerprint: str | None = None,
) -> tuple[StreamedModel | None, Limits]:
    """What will stay of a model (None: all of it) and the limits it will run with, from its header alone.

    `available` bytes on another machine, None for this one. `fingerprint`: of the file, to consider what earlier runs
    counted. Raises DoesNotFit as `place_and_pack`.
    """
    memory = memory_for_model() if available is None else available

    def planned(ram_bytes: int | None, limits: Limits, memory: int) -> tuple[StreamedModel | None, Limits]:
        room = fit_weights(spec, file, limits, replace(holding, ram_bytes=ram_bytes), memory)
        if room.budget_bytes is None:
            return None, room.limits
        kept = chosen_layout(spec, file, room.budget_bytes, disk, name, fingerprint)
        return None if kept.holds_all else kept, room.limits

    try:
        return planned(holding.ram_bytes, limits, memory)
    except DoesNotFit as reason:
        if spec.states or isinstance(reason, SlowDisk) or fits(partial(planned, None, limits, memory)):
            raise DoesNotFit(f"{reason}{_fewer_sequences(spec, file, limits, holding, memory)}") from None
    whole = memory_need(CPU, spec, file.tensors, limits).total_bytes + holding.encoder_bytes + holding.beside_bytes
    raise no_room(name, spec, limits, memory, int(whole / (1 - RESERVE_SHARE)) + 1, partial(planned, None))


def ram_for_both(
    spec: ModelSpec, file: TensorTable, name: str, limits: Limits, holding: WeightBudget, beside_bytes: int
) -> str:
    """Which budget would leave room for a drafter of `beside_bytes` too: the end of a sentence, "" if memory is short.

    A model that is read from disk in part takes less than one that stays, so the least such budget is searched for.
    """
    if holding.ram_bytes is None:
        return ""
    disk, whole = known_disk(), memory_need(CPU, spec, file.tensors, limits).weight_bytes

    def has_room(ram_bytes: int) -> bool:
        given = replace(holding, ram_bytes=ram_bytes, beside_bytes=beside_bytes)
        try:
            kept, _ = planned_weights(spec, file, name, limits, given, disk)
        except DoesNotFit:
            return False
        return kept is not None or ram_bytes >= whole + beside_bytes

    most = whole + beside_bytes
    low, high = holding.ram_bytes, whole - 1 if has_room(whole - 1) and holding.ram_bytes < whole else most
    if not has_room(high):
        return ""
    while high < whole and high - low > high // EXACT:
        middle = (low + high) // 2
        low, high = (low, middle) if has_room(middle) else (middle, high)
    return f"; --ram {enough(high).replace(' ', '')} would have room for both"


def _fewer_sequences(
    spec: ModelSpec, file: TensorTable, limits: Limits, holding: WeightBudget, available: int | None = None
) -> str:
    """How many sequences' states would leave room for all weights: the end of a sentence, "" if no number would."""
    need = memory_need(CPU, spec, file.tensors, limits)
    if holding.ram_bytes is not None:
        need = replace(need, weight_bytes=min(need.weight_bytes, holding.ram_bytes))
    return fewer_sequences(need, memory_for_model() if available is None else available, holding.n_sequences)


def place_and_pack(
    spec: ModelSpec,
    file: GGUFFile,
    name: str,
    fingerprint: str,
    limits: Limits,
    holding: WeightBudget,
    progress: Progress = no_progress,
) -> tuple[Limits, tuple[str, ...]]:
    """Limits for the CPU with the placement of weights, and notices. Creates the bundle file if there is none.

    `fingerprint`: of the file, independent of the activation threshold, which bundles do not depend on. Raises
    DoesNotFit if a token would take too long or nothing fits, BadBundle, PackFailed and what packing raises.
    """
    disk = known_disk()
    kept, limits = planned_weights(spec, file, name, limits, holding, disk, fingerprint=fingerprint)
    if kept is None:
        path = place_of(spec, file.tensors, name, fingerprint)
        return replace(limits, prepacked=Prepacked(path, fingerprint) if path.exists() else None), ()
    found = kept.placement
    path = place_of(spec, file.tensors, name, fingerprint, by_records=kept.by_records)
    packing = cpu_offload().packing(Model(file, spec), path, len(usable_cores()), kept.by_records)
    _have_bundle_file(packing, name, holding, progress)
    sizes = kept.pinned_bytes, found.window_bytes, found.n_readers, kept.cache_bytes, found.record_bytes
    gap_bytes = read_times(disk, SMALL_READERS).gap_bytes
    place = OffloadedWeights(path, fingerprint, found.pinned, *sizes, SMALL_READERS, gap_bytes, kept.by_records)
    return replace(limits, stored=place), (streaming_text(kept, disk) + _fewer_sequences(spec, file, limits, holding),)


def place_of(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], name: str, fingerprint: str, *, by_records: bool = True
) -> Path:
    """Path of a model's bundle file, existing or not: one for each layout that its layers may have.

    `by_records`: for a model whose layers can be stored as records, the path of that layout.
    """
    is_other = not by_records and has_records(spec, tensors)
    variant = NEURONS if has_threshold(spec) else ""  # also when read whole: a gate is read without its up matrix
    return bundle_path(name, fingerprint, f"{variant}{WHOLE if is_other else ''}")


def has_records(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether layers of a model can be stored as records, so that there are two layouts of its bundle file."""
    records = cpu_offload().records
    return record_plans() is not None and records is not None and records.has(spec, tensors)


def streamed_of(spec: ModelSpec, file: TensorTable, place: OffloadedWeights) -> Streamed:
    """What every pass of a model with this placement reads."""
    sizes = cpu_offload().sizes(spec, file.tensors, place.by_records)
    experts, records = _expert_loads(sizes, spec), record_loads(sizes, spec, place.fingerprint)
    n_held = 0 if experts is None else place.cache_bytes // experts.nbytes
    found = WeightPlacement(place.pinned, place.window_bytes, place.n_readers, 0.0, n_held, place.record_bytes)
    return streamed_model(_dense_loads(sizes), found, experts, records, known_disk()).streamed


@dataclass(frozen=True, slots=True)
class StageBytes:
    """Bytes of a stage's weights: those that stay, those that every pass reads, and those of which it reads some."""

    stage: str
    stay: int
    read: int
    some: int


def stage_bytes_of(spec: ModelSpec, file: TensorTable, place: OffloadedWeights) -> tuple[StageBytes, ...]:
    """The placement of each stage that has weights."""
    sums: dict[str, list[int]] = {}
    for bundle in cpu_offload().sizes(spec, file.tensors, place.by_records).bundles:
        kind = 0 if bundle.number in place.pinned else 1 if bundle.is_dense else 2
        sums.setdefault(bundle.stage, [0, 0, 0])[kind] += bundle.padded_bytes
    return tuple(StageBytes(stage, *counts) for stage, counts in sums.items())


def record_loads(sizes: BundleSizes, spec: ModelSpec, fingerprint: str | None = None) -> RecordLoads | None:
    """The records of all layers, used as in earlier runs of a file with this fingerprint; None if there are none."""
    plans = record_plans()
    return None if plans is None or sizes.records is None else plans.loads(sizes.records, spec, fingerprint)


def _have_bundle_file(packing: BundlePacking, name: str, holding: WeightBudget, progress: Progress) -> None:
    """Create the bundle file of a model unless a usable one exists."""
    try:
        packing.check()
    except BadBundle as reason:
        path = packing.path
        there = f" anew ({reason})" if path.exists() else ""
        if not holding.packs:
            raise BadBundle(
                f"{name} does not fit into the memory it may have, and --no-pack forbids writing the bundle file that "
                f"the rest would be read from; edgeinfer pack MODEL{pack_options(path)} writes it{there}"
            ) from None
        label = f"writing {path.name}, {size_text(packing.data_bytes)}{there or ', once'}"
        require_room_for_bundles(name, path, packing.data_bytes)
        packing.pack_anew(lambda what, *done: progress(label if what == "packing" else what, *done))


def known_disk() -> Disk | None:
    """The disk as measured on this machine, if it was."""
    profile = ProfileStore().find(fingerprint_of(read_topology()))
    return None if profile is None else profile.disk


def streaming_text(kept: StreamedModel, disk: Disk | None) -> str:
    """What happens in every pass, in a sentence."""
    read, total = size_text(kept.flash_bytes), size_text(kept.total_bytes)
    text = f"{read} of the {total} of weights are read from disk for every token"
    if kept.why:
        text = f"{text}, {kept.why}"
    if disk is None:
        return f"{text}; edgeinfer probe measures how fast that is"
    seconds = kept.streamed.seconds(disk)
    if not seconds:  # earlier used records are expected to be in memory
        return text
    rate = kept.streamed.nbytes / seconds
    measured = f"if the disk gives the {rate / 1e9:.2g} GB/s that were measured"
    return f"{text}: {1 / seconds:.3g} tok/s at most, one at a time, {measured}"
