"""The profile of this machine: the saved one, or one measured now.

In: what to measure. Out: a `Profile`. The entry points to `engine.probing` for commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edgeinfer.scheduling.machine.profile import Profile
    from edgeinfer.steps import Progress


def kept_profile() -> Profile | None:
    """The saved profile of this machine, if there is one."""
    from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
    from edgeinfer.scheduling.machine.topology import read_topology

    return ProfileStore().find(fingerprint_of(read_topology()))


def measured_profile(
    *,
    short: bool,
    formats: tuple[str, ...] = (),
    threads: int | None = None,
    cores: tuple[int, ...] | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure this machine now. `formats`: weight formats, instead of (if `short`) or in addition to the usual ones."""
    from edgeinfer.engine.probing.probe import ProbeRequest, probe
    from edgeinfer.models.store import default_root
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.steps import no_progress

    topology = read_topology()
    chosen = cores if cores is not None else topology.workers()
    wanted = ProbeRequest(short, formats, chosen[:threads] if threads else chosen)
    return probe(topology, wanted, default_root(), progress or no_progress)


def devices_profile(
    names: tuple[str, ...],
    formats: tuple[str, ...],
    cores: tuple[int, ...] | None,
    progress: Progress | None = None,
    *,
    again: bool = False,
) -> Profile:
    """This machine with these devices working together; measured if it was not yet, or `again`."""
    from edgeinfer.engine.probing.combination import combined_profile
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.steps import no_progress

    topology = read_topology()
    chosen = cores or topology.workers()
    return combined_profile(names, topology, chosen, formats, progress or no_progress, again=again)


def devices_alone(
    names: tuple[str, ...], formats: tuple[str, ...], cores: tuple[int, ...] | None, progress: Progress | None = None
) -> Mapping[str, Profile]:
    """This machine with each of these devices working alone, the cpu included; measured now if it was not yet."""
    from edgeinfer.engine.probing.combination import alone_profiles
    from edgeinfer.scheduling.machine.topology import read_topology
    from edgeinfer.steps import no_progress

    topology = read_topology()
    return alone_profiles(names, topology, cores or topology.workers(), formats, progress or no_progress)


def kept_devices(names: tuple[str, ...], cores: tuple[int, ...] | None) -> Path | None:
    """Path of the saved profile of these devices on these cores, if there is one."""
    from edgeinfer.engine.measure.profiles import ProfileStore
    from edgeinfer.engine.probing.combination import kept_combination
    from edgeinfer.scheduling.machine.topology import read_topology

    topology = read_topology()
    found = kept_combination(names, topology, cores or topology.workers())
    return None if found is None else ProfileStore().path(found.fingerprint)


def are_measurable(devices: Sequence[str]) -> bool:
    """Whether these devices can run parts of models, so that their times can be measured separately."""
    from edgeinfer.backends.base import DeviceKind, kind_of

    return all(isinstance(kind := kind_of(name), DeviceKind) and kind.modules for name in devices if name != "cpu")


def profile_or_short_probe(formats: tuple[str, ...], progress: Progress | None = None) -> Profile:
    """The saved profile; otherwise the result of a short probe, saved if the machine was otherwise idle."""
    from edgeinfer.engine.measure.profiles import ProfileStore
    from edgeinfer.scheduling.machine.profile import QUIET_SHARE

    found = kept_profile()
    if found is None:
        found = measured_profile(short=True, formats=formats, progress=progress)
        if found.idle_share is None or found.idle_share >= QUIET_SHARE:
            ProfileStore().save(found)
    return found
