"""Opens a model on named devices: on one alone, or on several by a plan.

In: device names separated by commas, a schedule, a model. Out: an open device with its compiled lane, and notices for
the user. `executor` knows no devices but what this module opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgeinfer.backends.base import Device, DeviceOptions, Lane, Limits, open_device, require_kv
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.engine.run.executor import AUTO_SCHEDULE, compiled
from edgeinfer.engine.run.workers import shared_cores
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.errors import BadSetting, DoesNotFit
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.profile import CPU
from edgeinfer.scheduling.machine.topology import available_bytes, read_topology
from edgeinfer.scheduling.placement.placement import Placement
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from edgeinfer.engine.opening.plan_choice import PlanChoice, PredictedTimes

FORMATS = 2
"""Number of quant formats that devices are measured with: those with the most bytes in the model."""


@dataclass(frozen=True, slots=True)
class OpeningRequest:
    """What devices are opened for: a model, what its lane must hold, and how the devices are used."""

    spec: ModelSpec
    file: GGUFFile
    limits: Limits
    options: DeviceOptions = field(default_factory=DeviceOptions)
    progress: Progress = no_progress


@dataclass(frozen=True, slots=True)
class OpenedLane:
    """A model ready to run. Close the lane before the device."""

    device: Device
    lane: Lane
    notices: tuple[str, ...] = ()


class Together:
    """Several open devices as one. Batch-invariance is not claimed, because rows come from different kernels."""

    batch_invariant = False
    capabilities = DeviceCapabilities()

    def __init__(self, spec: ModelSpec, host: Device, others: Mapping[str, Device], placement: Placement) -> None:
        self.name = "+".join([host.name, *(device.name for device in others.values())])
        self._spec, self._host, self._others, self._placement = spec, host, others, placement

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> Lane:
        """Compile the planned model on all devices; any other model on the host alone."""
        if spec is not self._spec:
            return self._host.compile(spec, file, limits, progress)
        return SharedLane(spec, self._placement, self._host, self._others, file, limits, progress)

    def close(self) -> None:
        """Close all devices."""
        for device in (self._host, *self._others.values()):
            device.close()


def open_model(device: str, request: OpeningRequest, schedule: str = AUTO_SCHEDULE) -> OpenedLane:
    """Open devices by name and compile the model for them.

    Raises UnknownKey for an unknown device, DeviceUnavailable if one cannot run, BadSetting for a combination that is
    not supported, DoesNotFit if memory is short.
    """
    spec, names = request.spec, device.split(",")
    require_kv(device, request.limits.kv)
    if len(names) == 1:
        return _alone(device, request)
    if spec.why_whole is not None:
        raise BadSetting(f"{spec.name} {spec.why_whole}, which one device runs as a whole: --device cpu")
    if CPU not in names:
        raise BadSetting(f"several devices need the cpu among them, which holds what they exchange: cpu,{device}")
    names = sorted(names, key=lambda name: (name != CPU, name))
    return _together(names, request, schedule)


def _alone(device: str, request: OpeningRequest, notices: tuple[str, ...] = ()) -> OpenedLane:
    opened = open_device(device, request.options)
    try:
        lane = compiled(opened, request.spec, request.file, request.limits, request.progress)
        return OpenedLane(opened, lane, notices)
    except BaseException:
        opened.close()
        raise


def _together(names: Sequence[str], request: OpeningRequest, schedule: str) -> OpenedLane:
    from edgeinfer.engine.opening.plan_choice import choose
    from edgeinfer.engine.probing.combination import alone_profiles, combined_profile, cores_of, on_host, options_for
    from edgeinfer.scheduling.placement.budgets import Budgets, Caching, budgets_of

    spec, file, limits = request.spec, request.file, request.limits
    options, progress = request.options, request.progress
    whole = replace(limits, windows=None)  # parts of a model keep the whole context
    topology, work = read_topology(), work_of(spec, file.tensors)
    cores, formats = shared_cores(options, topology), work.formats[:FORMATS]
    together = combined_profile(names, topology, cores, formats, progress)
    alone = alone_profiles(names, topology, cores, formats, progress)
    own = own_memory(names, options)
    budgets = budgets_of(together, work, available_bytes(), most_rows=limits.max_tokens, available_vram_bytes=own)
    if sum(map(on_host, names)) > 1:  # devices on the machine's own cores also use its memory
        budgets = Budgets(budgets.ram_bytes / 2, budgets.vram_bytes)
    choice = choose(together, alone, work, Caching(limits.n_context, 1, limits.kv), budgets, schedule)
    if schedule == AUTO_SCHEDULE and choice.prefers_one:
        return _alone(choice.best_alone, request, (_refused(names, choice),))
    if len(choice.devices) == 1:
        return _alone(choice.devices[0], request, (_planned(choice),))
    if choice.plan.usage.flash_bytes:
        raise DoesNotFit(
            f"{file.path} does not fit in the memory of {', '.join(names)}: some of it would be read from disk"
        )
    shares = cores_of(names, cores)
    opened: dict[str, Device] = {}
    try:
        for name in names:
            if name in choice.devices or name == CPU:
                opened[name] = open_device(name, options_for(name, shares, options))
        others = {name: each for name, each in opened.items() if name != CPU}
        device = Together(spec, opened[CPU], others, choice.placement)
        return OpenedLane(device, compiled(device, spec, file, whole, progress), (_planned(choice),))
    except BaseException:
        for each in opened.values():
            each.close()
        raise


def own_memory(names: Sequence[str], options: DeviceOptions) -> dict[str, int]:
    """Free bytes of each device that has its own memory and reports it."""
    from edgeinfer.engine.probing.combination import on_host

    found: dict[str, int] = {}
    for name in names:
        if on_host(name):
            continue
        device = open_device(name, options)
        try:
            memory = device.capabilities.memory
            n_bytes = None if memory is None else memory.memory_bytes
        finally:
            device.close()
        if n_bytes is not None:
            found[name] = n_bytes
    return found


def _refused(names: Sequence[str], choice: PlanChoice) -> str:
    best = choice.best_alone
    return (
        f"{'+'.join(names)} is predicted to {_told(choice.together)}, and {best} alone to "
        f"{_told(choice.alone[best])}: it runs on {best} alone; --schedule rows uses them together all the same"
    )


def _planned(choice: PlanChoice) -> str:
    best = choice.best_alone
    return (
        f"{'+'.join(choice.devices)} by schedule {choice.plan.schedule} is predicted to {_told(choice.together)}, "
        f"on {best} alone it would {_told(choice.alone[best])}"
    )


def _told(answer: PredictedTimes) -> str:
    return f"decode {1 / answer.token_s:.0f} tok/s after a prompt in {answer.prompt_s:.2f} s"
