"""Opens a model for many sequences on the CPU and one accelerator, by device name.

In: device names, a model, limits. Out: an `OverlapExecutor` that chooses its schedule by rates measured on this
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgeinfer.backends.base import Device, DeviceKind, Limits, kind_of, open_device
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.kv.limits import SPARE_PAGES
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.opening.devices import FORMATS, OpeningRequest, open_model, own_memory
from edgeinfer.engine.overlap.choosing import Choosing, Expectation, expected
from edgeinfer.engine.overlap.executor import OverlapExecutor
from edgeinfer.engine.overlap.passes import Pair, paired
from edgeinfer.engine.run.executor import AUTO_SCHEDULE, Executor
from edgeinfer.errors import BadSetting, DoesNotFit, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.batch.costs import BatchCosts
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import CPU, Profile
from edgeinfer.scheduling.machine.topology import available_bytes, read_topology
from edgeinfer.scheduling.placement.budgets import Budgets, budgets_of

APEX = "apex"
"""Use whichever batch schedule is predicted to be fastest."""


def open_overlap(
    device: str, request: OpeningRequest, schedule: str = AUTO_SCHEDULE, *, resident_pages: int | None = None
) -> OverlapExecutor:
    """Open "cpu,openvino" or the like. The KV pages of the request's limits are shared by all sequences.

    `resident_pages`: how many of them are on the accelerator, besides a few spare ones; None: as many as its memory
    holds. The rest, with room for at least one whole context, is in the machine's memory. Device rates are measured on
    first use and cached. Raises UnknownKey, DeviceUnavailable, BadSetting, DoesNotFit, UnsupportedModel.
    """
    _refuse_whole(request.spec, device)
    situation = _situation(accelerator_of(device), request, None)
    return _open(situation, request, schedule, resident_pages=resident_pages)


def open_batch(
    device: str,
    request: OpeningRequest,
    schedule: str,
    vram_bytes: int | None,
    power_limiter: PowerLimiter | None,
) -> OverlapExecutor | Executor:
    """As `open_overlap`, but with AUTO_SCHEDULE it opens a single device if that is predicted to make more tokens.

    `schedule`: a batch schedule by name, "apex" for the fastest predicted one in each pass, or AUTO_SCHEDULE.
    `vram_bytes`: of the accelerator's memory; None: all that is free.
    """
    spec, file, limits, options = request.spec, request.file, request.limits, request.options
    _refuse_whole(spec, device)
    name = accelerator_of(device)
    situation = _situation(name, request, vram_bytes)
    if schedule == AUTO_SCHEDULE:
        expectation = situation.expectation(situation.room(situation.weight_bytes, limits), limits)
        if expectation.prefers_one:
            found = open_model(expectation.best_alone, request)
            told = (*found.notices, expectation.refusal(name))
            return Executor(
                found.device, found.lane, limits, fingerprint(file), options, power_limiter=power_limiter, notices=told
            )
    return _open(situation, request, schedule, power_limiter)


def _open(
    situation: _Situation,
    request: OpeningRequest,
    schedule: str,
    power_limiter: PowerLimiter | None = None,
    *,
    resident_pages: int | None = None,
) -> OverlapExecutor:
    """Open both devices, each with as many pages as it has room for."""
    limits = replace(request.limits, windows=None)  # each KV partition keeps the whole context of its sequences
    request = replace(request, limits=limits)
    choosing = Choosing(situation.costs, AUTO_SCHEDULE if schedule == APEX else schedule)

    def pages(products_bytes: int) -> tuple[int, int]:
        wanted = situation.room(products_bytes, limits) if resident_pages is None else resident_pages
        n_offloaded = max(limits.n_pages - wanted, pages_for(limits.n_context))
        _check_memory(situation.budgets.ram_bytes, n_offloaded, request)
        return wanted + (SPARE_PAGES if wanted else 0), n_offloaded

    pair = _opened(situation, request, pages)
    n_spare = SPARE_PAGES if pair.resident.n_pages else 0
    told = situation.expectation(pair.resident.n_pages - n_spare, limits).notice(situation.name, schedule)
    host = replace(request.options, n_workers=len(situation.shares[CPU]), cores=situation.shares[CPU], adapts=False)
    return OverlapExecutor(pair, fingerprint(request.file), choosing, host, power_limiter, (told,), n_spare)


def accelerator_of(device: str) -> str:
    """The accelerator of two devices, one of which is the CPU. Raises BadSetting, UnknownKey."""
    names = device.split(",")
    others = [name for name in names if name != CPU]
    if len(names) != 2 or len(others) != 1:
        raise BadSetting(f"sequences are shared by the cpu and one other device, as in cpu,openvino; not by {device}")
    if not isinstance(kind_of(others[0]), DeviceKind):
        raise BadSetting(f"device cannot be {device}: {others[0]} runs whole models by itself; name it alone")
    return others[0]


@dataclass(frozen=True, slots=True)
class _Situation:
    """The machine as the CPU and the device `name` share it, and what it has room for.

    `free_bytes`: of the accelerator's memory; `weight_bytes` and `page_bytes`: what the weights and one KV page take
    there.
    """

    name: str
    together: Profile
    alone: dict[str, Profile]
    shares: dict[str, tuple[int, ...]]
    work: ModelWork
    costs: BatchCosts
    budgets: Budgets
    free_bytes: float
    weight_bytes: int
    page_bytes: int

    def room(self, products_bytes: int, limits: Limits) -> int:
        """Pages the accelerator holds beside matmuls of this many bytes, at most the number requested."""
        n_pages = int((self.free_bytes - products_bytes) // max(1, self.page_bytes)) - SPARE_PAGES
        return max(0, min(limits.n_pages, n_pages))

    def expectation(self, n_resident_pages: int, limits: Limits) -> Expectation:
        """Predicted throughput for sequences of the whole context."""
        each = pages_for(limits.n_context)
        n_resident, n_all = n_resident_pages // each, max(1, (limits.n_pages - SPARE_PAGES) // each)
        sequences = min(n_resident, n_all), max(0, n_all - n_resident)
        able = dict(self.alone)
        if sequences[1]:  # not enough room for all of them
            able.pop(self.name, None)
        return expected(self.costs, able, self.work, limits.kv, sequences, limits.n_context)


def _situation(name: str, request: OpeningRequest, vram_bytes: int | None) -> _Situation:
    from edgeinfer.engine.probing.combination import alone_profiles, combined_profile, cores_of, on_host

    spec, file, limits = request.spec, request.file, request.limits
    options, progress = request.options, request.progress
    topology, work = read_topology(), work_of(spec, file.tensors)
    asked = None if options.decode_shares else options.cores
    cores = (asked or topology.workers())[: None if options.decode_shares else options.n_workers]
    names, formats = (CPU, name), work.formats[:FORMATS]
    together = combined_profile(names, topology, cores, formats, progress)
    alone = alone_profiles(names, topology, cores, formats, progress)
    available, vram = available_bytes(), own_memory([name], options)
    if on_host(name):  # its allocations also use the machine's memory
        available = available // 2
        vram = {name: available}
    if vram_bytes is not None:
        vram = {name: min(vram_bytes, vram.get(name, vram_bytes))}
    budgets = budgets_of(together, work, available, most_rows=limits.max_tokens, available_vram_bytes=vram)
    weight_bytes, page_bytes = _taken(name, spec, file, limits, budgets.vram_bytes[name])
    costs = BatchCosts(together, work, limits.kv, name)
    shares = cores_of(names, cores)
    return _Situation(
        name, together, alone, shares, work, costs, budgets, budgets.vram_bytes[name], weight_bytes, page_bytes
    )


def _taken(name: str, spec: ModelSpec, file: GGUFFile, limits: Limits, free_bytes: float) -> tuple[int, int]:
    """Bytes of the weights and of one KV page on an accelerator. Raises DoesNotFit if it cannot hold the weights."""
    kind = kind_of(name)
    assert isinstance(kind, DeviceKind)
    taken = kind.footprint(spec, file.tensors, limits)
    if taken.weight_bytes > free_bytes:
        raise DoesNotFit(
            f"{file.path} does not fit on {name}: its weights take {taken.weight_bytes} bytes, {free_bytes:.0f} are "
            f"free; use a smaller quant, or cpu,{name} for one sequence, with --schedule rows"
        )
    return taken.weight_bytes, taken.kv_bytes_per_token * PAGE


def _check_memory(free_bytes: float, n_pages: int, request: OpeningRequest) -> None:
    """Raises DoesNotFit if the machine's memory is too small for the pages of offloaded sequences."""
    kind = kind_of(CPU)
    assert isinstance(kind, DeviceKind)
    footprint = kind.footprint(request.spec, request.file.tensors, request.limits)
    wanted = footprint.kv_bytes_per_token * n_pages * PAGE
    if wanted > free_bytes:
        raise DoesNotFit(
            f"keys and values of sequences in memory take {wanted} bytes, {free_bytes:.0f} are free; "
            "use fewer sequences, a smaller context or --kv q8"
        )


def _opened(situation: _Situation, request: OpeningRequest, pages: Callable[[int], tuple[int, int]]) -> Pair:
    """Open both devices on their cores and compile for them. `pages`: as in `paired`."""
    from edgeinfer.engine.probing.combination import options_for

    opened: list[Device] = []
    try:
        for each in (CPU, situation.name):
            opened.append(open_device(each, options_for(each, situation.shares, request.options)))
        host, accelerator = opened
        return paired(request.spec, request.file, host, accelerator, request.limits, pages, request.progress)
    except BaseException as reason:
        for device in opened:
            device.close()
        if isinstance(reason, MemoryError):
            raise DoesNotFit(
                f"{request.file.path} does not fit in memory on both devices; use fewer sequences"
            ) from None
        raise


def _refuse_whole(spec: ModelSpec, device: str) -> None:
    """Raises UnsupportedModel for a model that devices cannot share, on behalf of a device that does not run it."""
    if spec.why_whole is not None:
        also = "" if spec.inputs.row_width else ", and llamacpp"
        raise UnsupportedModel(f"{spec.name} {spec.why_whole}, which {device} does not run; --device cpu does{also}")
