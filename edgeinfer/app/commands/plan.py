"""`edgeinfer plan`: what would run where and how fast, before anything is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import flag_bytes, flags_read
from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgeinfer.app.plans.images import FoundProjector
    from edgeinfer.app.plans.planning import Planned, PlanRequest
    from edgeinfer.app.plans.record import PlannedModel
    from edgeinfer.app.plans.shown import ModelPlans, PlanOutput
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.models.store import LocalModel
    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.scheduling.prediction import MeasuredSpeeds, Plan
    from edgeinfer.settings import Settings

Verbose = Annotated[bool, typer.Option("--verbose", help="Print a line for each layer.")]


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """What the command line asks to plan for; in the order of the help."""

    machine: Annotated[
        str | None,
        typer.Option("--machine", metavar="NAME|FILE", help="Plan for another machine: a profile or a name."),
    ] = None
    ram: Annotated[
        str | None,
        typer.Option(
            "--ram",
            metavar="SIZE|PCT",
            help="Memory for weights: 3GB, or 60% of available memory (not of the model), of all its memory with "
            "--machine; the rest is read from disk in every pass (default: all there is).",
        ),
    ] = None
    vram: Annotated[
        str | None, typer.Option("--vram", metavar="SIZE", help="Memory of each accelerator. Default: all of it.")
    ] = None
    batch: Annotated[int, typer.Option("--batch", min=1, help="Number of concurrent sequences.")] = 1
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="auto, cpu, accelerator, static, stream, rows, hetegen; "
            "of several sequences accelerator-only, asymmetric, overlap, apex.",
        ),
    ] = "auto"
    chart: Annotated[
        Path | None, typer.Option("--chart", metavar="FILE.svg", help="Draw memory, passes and the roofline.")
    ] = None
    goal: Annotated[str, typer.Option("--goal", help="latency (of one sequence), throughput (of --batch), quiet.")] = (
        "latency"
    )


@takes_settings(
    *("model", "ctx", "device", "kv", "kv_ram", "threads", "cores", "approx", "lora", "mmproj"),
    *("spec", "draft_from", "self_draft", "small_model", "hand_over"),
)
def plan(
    given: Given,
    flags: PlanFlags,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Predict placement, memory and speed before loading.

    Predictions use the profile of this machine (see probe); if there is none, it is measured in a few seconds.
    """
    from edgeinfer.app.charts.page import check_chart
    from edgeinfer.app.opening.model_choice import choose_file
    from edgeinfer.app.plans.planning import PlanRequest, check_schedule, read_goal
    from edgeinfer.app.plans.shown import PlanOutput
    from edgeinfer.settings import load_settings

    settings, schedule = _of_approximate(load_settings(given), flags.schedule)
    chosen_cores = _cores(settings, flags.machine)
    with flags_read():
        check_schedule(schedule)
        if flags.chart is not None:
            check_chart(flags.chart)
        ram_bytes, ram_said = _ram(flags.ram, flags.machine)
        asked = PlanRequest(
            kv=settings.load.kv,
            n_sequences=flags.batch,
            ram_bytes=ram_bytes,
            vram_bytes=None if flags.vram is None else flag_bytes(flags.vram),
            schedule=schedule,
            goal=read_goal(flags.goal),
            cores=chosen_cores,
            kv_budget=settings.load.approximation.kv or 0,
        )
    local = choose_file(settings, "plan", "edgeinfer run --stats answers with it and says how fast")
    settings = replace(settings, load=settings.load.with_adapters(local.adapters))
    _show(local, settings, flags.machine, asked, PlanOutput(as_json, verbose, ram_said, flags.chart, settings.load.kv))


def _ram(ram: str | None, machine: str | None) -> tuple[int | None, str | None]:
    """The memory for weights, and what a share came to. Raises BadSetting."""
    from edgeinfer.scheduling.machine.catalogue import machine_profile
    from edgeinfer.scheduling.machine.topology import available_bytes
    from edgeinfer.text_values import share_text, size_in_bytes

    if ram is None:
        return None, None
    if machine is None:
        n_bytes, of = size_in_bytes(ram, available_bytes()), "available memory"
    else:
        profile = machine_profile(machine)
        n_bytes, of = size_in_bytes(ram, profile.cpu.memory_bytes), f"the memory of {profile.name}"
    return n_bytes, share_text(ram, n_bytes, of)


def _of_approximate(settings: Settings, schedule: str) -> tuple[Settings, str]:
    """Settings and schedule, on the cpu where answers are approximate. Raises BadSetting where that cannot be."""
    from edgeinfer.engine.opening.evaluator import approximate_on
    from edgeinfer.engine.opening.kv_ram import require_kv_ram
    from edgeinfer.engine.two_models.setup import with_two_models
    from edgeinfer.errors import BadSetting

    require_kv_ram(settings.load)
    settings = replace(settings, load=with_two_models(settings.load))
    approx = settings.load.approximation
    if approx.is_exact:
        return settings, schedule
    if schedule not in ("auto", "cpu"):
        raise BadSetting(f"schedule {schedule} uses devices other than the cpu, which alone has --approx; leave it out")
    return _on(approximate_on(settings.load.device, approx), settings), "cpu"


def _show(local: LocalModel, settings: Settings, machine: str | None, asked: PlanRequest, how: PlanOutput) -> None:
    """Plan and print. Raises DoesNotFit, after it has said what it knows."""
    from edgeinfer.app.plans.images import found_projector
    from edgeinfer.app.plans.measured import device_found
    from edgeinfer.app.plans.shown import show_plan
    from edgeinfer.app.plans.streamed import may_be_found
    from edgeinfer.engine.run.executor import AUTO_DEVICE
    from edgeinfer.errors import DeviceFailed, DeviceUnavailable
    from edgeinfer.models.gguf import GGUFFile
    from edgeinfer.scheduling.prediction import MeasuredSpeeds

    with GGUFFile.open(local.path, settings.load.adapters) as file:
        projector, settings = found_projector(file, local, settings)
        is_found = machine is None and settings.load.device == "auto"
        if is_found:
            is_found = may_be_found(file, settings, asked)
            settings = _on(device_found(file, settings.load) if is_found else AUTO_DEVICE, settings)
        try:
            plans = _plans(local.name, file, projector, settings, machine, asked)
        except (DeviceUnavailable, DeviceFailed):
            if not is_found or settings.load.device == AUTO_DEVICE:
                raise
            settings = _on(AUTO_DEVICE, settings)  # as run does where the device that won cannot run
            plans = _plans(local.name, file, projector, settings, machine, asked)
        is_whole = machine is None and plans.here.kept is None
        speeds = _measured(file, settings, plans.here, plans.planned) if is_whole else MeasuredSpeeds()
    show_plan(local.name, plans, speeds, how, is_elsewhere=machine is not None)


def _plans(
    name: str,
    file: GGUFFile,
    projector: FoundProjector,
    settings: Settings,
    machine: str | None,
    asked: PlanRequest,
) -> ModelPlans:
    """Plan for this machine or another one."""
    from edgeinfer.app.plans.fit import Fit
    from edgeinfer.app.plans.shown import ModelPlans
    from edgeinfer.app.plans.streamed import fit_there, held_here, planned_there
    from edgeinfer.engine.kv.limits import memory_for_model
    from edgeinfer.engine.offload.least_memory import NoRoomToStream
    from edgeinfer.errors import DoesNotFit

    facts, here = _facts(file, projector, settings)
    asked, whole = replace(asked, n_context=here.need.n_context), here.need
    profile = None if machine is None else _machine(machine, asked)
    available = memory_for_model() if profile is None else profile.cpu.memory_bytes
    try:
        if profile is not None:
            planned = planned_there(profile, name, file, facts, asked)
            return ModelPlans(facts, here, planned, None, fit_there(whole, planned, asked))
        here, asked = held_here(here, name, file, facts, settings, asked)
        fit = Fit(here.need, available, None if here.kept is None else whole)
        found = _planned(settings.load.device_names, asked, facts, here)
        return ModelPlans(facts, here, found, None, fit, _bundle(name, file, facts, here))
    except DoesNotFit as refusal:
        remedy = refusal.remedy if isinstance(refusal, NoRoomToStream) else ""
        return ModelPlans(facts, here, None, refusal, Fit(whole, available, refusal=str(refusal), remedy=remedy))


def _bundle(name: str, file: GGUFFile, facts: PlannedModel, here: Plan) -> str:
    """The bundle file of a model that does not stay in memory as a whole, in words; "" for others."""
    from edgeinfer.engine.offload.bundle_room import bundle_text
    from edgeinfer.engine.offload.weight_placement import place_of
    from edgeinfer.models.file_facts import fingerprint

    if here.kept is None:
        return ""
    path = place_of(facts.spec, file.tensors, name, fingerprint(file), by_records=here.kept.by_records)
    return bundle_text(path, here.kept.total_bytes)


def _on(device: str, settings: Settings) -> Settings:
    return replace(settings, load=replace(settings.load, device=device))


def _planned(devices: tuple[str, ...], asked: PlanRequest, facts: PlannedModel, here: Plan) -> Planned | None:
    """The plan for these devices of this machine; None where nothing is known of them, or of a disk that is needed."""
    from edgeinfer.app.plans.expectation import adjustment_of
    from edgeinfer.app.plans.planning import plan_devices, plan_model, plan_streamed

    profile = _profile(devices, facts.formats_on(devices), asked.cores)
    if profile is None or (here.kept is not None and profile.disk is None):
        return None
    wanted = replace(asked, ram_bytes=None)
    if len(devices) == 1 and profile.accelerators:
        wanted = replace(wanted, schedule="accelerator")
    if here.kept is not None:
        planned = plan_streamed(profile, facts.work, wanted, here.kept)
    elif len(devices) > 1:
        planned = plan_devices(profile, _alone(devices, facts.work.formats, asked.cores), facts.work, wanted)
    else:
        planned = plan_model(profile, facts.work, wanted, fits=here.need.kv_file_bytes > 0)
    return replace(planned, adjustment=adjustment_of(planned.profile, streams=here.kept is not None))


def _machine(name: str, asked: PlanRequest) -> Profile:
    """Another machine. Raises EdgeInferError for one that is not known, and for cores that it has not."""
    from edgeinfer.scheduling.machine.catalogue import machine_profile

    profile = machine_profile(name)
    _check_cores(profile, asked.cores)
    return profile


def _measured(file: GGUFFile, settings: Settings, here: Plan, planned: Planned | None) -> MeasuredSpeeds:
    """What answers took with the devices that take part, under the name that they have together."""
    from edgeinfer.app.plans.measured import measured_speeds
    from edgeinfer.engine.probing.combination import ordered
    from edgeinfer.scheduling.machine.profile import CPU

    names = settings.load.device_names
    working = names if planned is None else planned.decode.placement.devices
    if len(working) > 1:
        working = ("+".join(name for name in ordered(names) if name == CPU or name in working),)
    return measured_speeds(file, working[0], here.n_workers, settings.load.kv)


def _cores(settings: Settings, elsewhere: str | None) -> tuple[int, ...] | None:
    """The cores that were asked for, by number or by how many; None for those that help most."""
    from edgeinfer.process import require_cpus
    from edgeinfer.scheduling.machine.topology import usable_cores

    load = settings.load
    cores = load.core_numbers
    if cores is not None and elsewhere is None:
        require_cpus(cores)
    return cores if load.threads is None else (cores or usable_cores())[: load.threads]


def _check_cores(profile: Profile, cores: tuple[int, ...] | None) -> None:
    """Raises BadSetting for a core that another machine does not list."""
    from edgeinfer.errors import BadSetting

    known = {core.number for core in profile.cpu.cores}
    if known and (missing := sorted({*(cores or ())} - known)):
        there_are = ", ".join(map(str, sorted(known)))
        raise BadSetting(f"{profile.name} has no core {missing[0]}; it has: {there_are}")


def _facts(file: GGUFFile, projector: FoundProjector, settings: Settings) -> tuple[PlannedModel, Plan]:
    """The model in numbers, and what all of it takes on this machine."""
    from edgeinfer.app.plans.fit import plan_for
    from edgeinfer.app.plans.record import PlannedModel
    from edgeinfer.engine.speculation.heads import planned_drafter
    from edgeinfer.models.load import weight_bytes
    from edgeinfer.scheduling.cost.work import work_of
    from edgeinfer.scheduling.machine.topology import usable_cores

    load = settings.load
    spec, here = plan_for(
        file,
        device=load.device_names[0],
        n_context=load.n_context,
        kv=load.kv,
        n_workers=load.threads or len(load.cores or usable_cores()),
        approx=load.approximation,
        kv_ram=load.kv_ram_bytes,
        adapters=file.adapters,
        projector=projector.facts,
    )
    n_params = sum(math.prod(file.tensors[name].shape) for name in {weight.tensor for weight in spec.weights()})
    work, in_file = work_of(spec, file.tensors), weight_bytes(spec, file.tensors)
    adapters = tuple((each.path, each.scale, each.nbytes(file.tensors)) for each in file.adapters)
    need, per_token = here.need, here.need.kv_bytes_per_token
    drafter = planned_drafter(file, spec, load, need.n_context)
    sizes = n_params, in_file, per_token, file.nbytes
    return PlannedModel(spec, work, *sizes, adapters, drafter, load.approximation.kv, projector), here


def _profile(devices: tuple[str, ...], formats: tuple[str, ...], cores: tuple[int, ...] | None) -> Profile | None:
    """This machine with these devices; None for a device that nothing is known of."""
    from edgeinfer.app.plans.measured import are_measurable, devices_profile, profile_or_short_probe
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.opening.devices import FORMATS
    from edgeinfer.scheduling.machine.profile import CPU

    with ProgressLine() as progress:
        if devices in (("auto",), (CPU,)):
            return profile_or_short_probe(formats, progress)
        if not are_measurable(devices):
            return None
        return devices_profile(devices, formats[:FORMATS], cores, progress)


def _alone(devices: tuple[str, ...], formats: tuple[str, ...], cores: tuple[int, ...] | None) -> Mapping[str, Profile]:
    """The machine as each of these devices has it to itself."""
    from edgeinfer.app.plans.measured import devices_alone
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.engine.opening.devices import FORMATS

    with ProgressLine() as progress:
        return devices_alone(devices, formats[:FORMATS], cores, progress)


COMMAND = Command(plan)
