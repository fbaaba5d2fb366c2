"""The machine that checks examine: where its files are, and the facts that several checks need.

In: nothing, or what a test recorded. Out: an `ExaminedMachine`. Samples the load of other processes for half a second;
measures nothing else.
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
from edgeinfer.scheduling.machine.topology.linux_files import text_of


@dataclass(frozen=True, slots=True)
class ExaminedMachine:
    """A machine to examine.

    root          folder that holds `sys`, `proc` and `dev`
    window        counters before and after half a second
    profile       earlier measurements, stored in `profile_path`; None if there are none
    models        the folder of models
    environ       the environment variables
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
        """Whether the processor reports that it runs under a hypervisor."""
        return "hypervisor" in cpu_flags(self.root)


def this_machine() -> ExaminedMachine:
    """Describe the machine this process runs on."""
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
    """The features of the first processor, by Linux's names."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
