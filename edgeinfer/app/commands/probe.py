"""`edgeinfer probe`: measure this machine, keep the profile, print it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.misuse import flags_read
from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.plain_text import echo

if TYPE_CHECKING:
    from edgeinfer.load_options import LoadOptions
    from edgeinfer.scheduling.machine.profile import Profile

DEVICE_FORMATS = ("Q4_0",)
"""Of the weights that other devices are measured with; those of a model are, when it is planned or run."""


@takes_settings("threads", "cores")
def probe(
    given: Given,
    short: Annotated[bool, typer.Option("--short", help="Measure for less than two seconds.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write the profile to this file, for plan --machine."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAMES", help="Devices to measure, such as openvino or cpu,openvino."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure this machine and save its profile.

    Measures memory, kernels and disk in about 16 seconds, plus compilation the first time. Run nothing else meanwhile:
    disturbed measurements are repeated, and the profile records how idle the machine was. With --device other devices
    are measured, with their launches and transfers, which takes longer.
    """
    from edgeinfer.app.config_file import read_checked
    from edgeinfer.app.plans.measured import measured_profile
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.errors import BadSetting, EdgeInferError
    from edgeinfer.scheduling.machine.profile_file import profile_text
    from edgeinfer.settings import load_settings

    if out is not None and not out.parent.is_dir():
        raise EdgeInferError(f"{out} cannot be written: there is no folder {out.parent}")
    with flags_read():
        asked = {} if device is None else {"device": read_checked("device", device, "--device")}
    load = load_settings({**given, **asked}).load
    if device is not None and load.device != "cpu":
        if short:
            raise BadSetting(f"--short measures this machine alone; leave it out to measure {device}")
        _show_devices(load, out, as_json)
        return
    with ProgressLine() as progress:
        profile = measured_profile(short=short, threads=load.threads, cores=load.core_numbers, progress=progress)
    is_whole = not (load.threads or load.cores)
    kept = _keep(profile) if is_whole else None
    _write(profile, out)
    if as_json:
        echo(json.dumps(_record(profile, kept)))
    else:
        echo(profile_text(profile), nl=False)
        why = "all of this machine was measured before" if is_whole else "not all of its cores were measured"
        echo(f"not kept: {why}" if kept is None else f"kept in {kept}", err=True)


def _show_devices(load: LoadOptions, out: Path | None, as_json: bool) -> None:
    """Measure other devices and print what plans of them are made from. Raises UnknownKey, DeviceUnavailable."""
    from edgeinfer.app.plans.measured import devices_profile, kept_devices
    from edgeinfer.app.progress import ProgressLine
    from edgeinfer.scheduling.machine.profile_file import profile_text
    from edgeinfer.scheduling.machine.topology import read_topology

    names = load.device_names
    cores = (load.core_numbers or read_topology().workers())[: load.threads]
    with ProgressLine() as progress:
        profile = devices_profile(names, DEVICE_FORMATS, cores, progress, again=True)
    kept = kept_devices(names, cores)
    _write(profile, out)
    if as_json:
        echo(json.dumps(_record(profile, kept)))
    else:
        echo(profile_text(profile), nl=False)
        echo("not saved: it cannot be written" if kept is None else f"kept in {kept}", err=True)


def _write(profile: Profile, out: Path | None) -> None:
    from edgeinfer.errors import EdgeInferError
    from edgeinfer.scheduling.machine.profile_file import profile_text

    if out is not None:
        try:
            out.write_text(profile_text(profile), encoding="utf-8")
        except OSError as reason:
            raise EdgeInferError(f"{out} cannot be written: {reason.strerror or reason}") from None


def _keep(profile: Profile) -> Path | None:
    """Keep a profile, unless all of this machine was measured before and this is the short look; None if not kept."""
    from edgeinfer.engine.measure.profiles import ProfileStore

    before = ProfileStore().find(profile.fingerprint) if profile.short else None
    return ProfileStore().save(profile) if before is None or before.short else None


def _record(profile: Profile, kept: Path | None) -> dict[str, object]:
    """The profile as JSON: the same tables and keys as the TOML file."""
    import tomllib

    from edgeinfer.scheduling.machine.profile_file import profile_text

    return {**tomllib.loads(profile_text(profile)), "path": None if kept is None else str(kept)}


COMMAND = Command(probe)
