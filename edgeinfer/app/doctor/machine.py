"""The machine as checks are given it: where its files are, and what several of them ask for.

In: nothing, or what a test recorded. Out: an `ExaminedMachine`. Looks for half a second at what others do; measures
nothing.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgeinfer.app.doctor.system import SampledInterval, System, ThisSystem, watch
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import Topology, read_topology
from edgeinfer.scheduling.machine.topology.files import text_of


@dataclass(frozen=True, slots=True)
class ExaminedMachine:
    """A machine to be examined.

    root          below it are `sys`, `proc` and `dev`
    window        counters around half a second
    profile       what was measured on it before, kept in `profile_path`; None if it never was
    models        the folder of models
    environ       the environment's variables
    now           the time, in UTC
    """

    root: Path
    system: System
    window: SampledInterval
    topology: Topology
    profile: Profile | None
    profile_path: Path | None
    models: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    now: datetime.datetime = datetime.datetime.min

    @property
    def is_virtual(self) -> bool:
        """Whether the processor says that it runs under a hypervisor."""
        return "hypervisor" in cpu_flags(self.root)


def this_machine() -> ExaminedMachine:
    """The machine this process runs on."""
    from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
    from edgeinfer.models.store import default_root

    topology, profiles, system = read_topology(), ProfileStore(), ThisSystem()
    fingerprint = fingerprint_of(topology)
    return ExaminedMachine(
        root=Path("/"),
        system=system,
        window=watch(system),
        topology=topology,
        profile=profiles.find(fingerprint),
        profile_path=profiles.path(fingerprint),
        models=default_root(),
        environ=os.environ,
        now=datetime.datetime.now(datetime.UTC),
    )


def cpu_flags(root: Path) -> frozenset[str]:
    """What the first processor can do, as Linux calls it."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
