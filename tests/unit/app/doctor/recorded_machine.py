"""A machine below a folder, with a system that tells what a test wrote down."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass, field
from pathlib import Path

from edgeinfer.app.doctor import Finding
from edgeinfer.app.doctor.machine import Counters, ExaminedMachine, Mount, SampledInterval, Swap
from edgeinfer.scheduling.machine.profile import (
    ANY,
    AttentionRates,
    CoreRates,
    Curve,
    DeviceRates,
    Disk,
    ProductRates,
    Profile,
)
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.scheduling.workers.governor import Condition

NOW = datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class RecordedSystem:
    """A `System` that tells the same every time."""

    state: Condition = field(default_factory=Condition)
    swap_space: Swap = field(default_factory=Swap)
    mounted: tuple[Mount, ...] = ()
    free: int | None = None

    def counters(self) -> Counters:
        return Counters()

    def condition(self) -> Condition:
        return self.state

    def swap(self) -> Swap:
        return self.swap_space

    def mounts(self) -> tuple[Mount, ...]:
        return self.mounted

    def free_bytes(self, folder: Path) -> int | None:
        return self.free


def machine_at(root: Path, **changes: object) -> ExaminedMachine:
    """The machine whose files are below `root`; it tells nothing else unless `changes` say so."""
    plain = ExaminedMachine(
        root=root,
        system=RecordedSystem(),
        window=SampledInterval(),
        topology=read_topology(root),
        profile=None,
        profile_path=None,
        models=root / "models",
        environ={"EDGEINFER_HOME": str(root / "home")},
        now=NOW,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def write(root: Path, name: str, text: str) -> Path:
    """A file below `root`."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def profile_of(
    *, alone_gb_s: float, together_gb_s: float, n_cores: int, disk_gb_s: float | None = None, **changes: object
) -> Profile:
    """A profile of which only reading rates matter."""
    level = Curve.level(1e9)
    cores = tuple(CoreRates(number, "performance", 0, alone_gb_s * 1e9, 1.0) for number in range(n_cores))
    cpu = DeviceRates(
        name="cpu",
        kind="a CPU",
        memory_bytes=16 << 30,
        read=Curve((1e6, 1e9), (10 * together_gb_s * 1e9, together_gb_s * 1e9)),
        products={ANY: ProductRates(0.5, level)},
        attention=(AttentionRates(64, level),),
        element_rate=level,
        cores=cores,
    )
    disk = None if disk_gb_s is None else Disk({1: Curve.level(disk_gb_s * 1e9 / 2), 4: Curve.level(disk_gb_s * 1e9)})
    return dataclasses.replace(Profile("a machine", (cpu,), disk), **changes)  # type: ignore[arg-type]


def by_name(findings: object) -> dict[str, Finding]:
    """Findings by name, each of which must be there once."""
    listed = list(findings)  # type: ignore[call-overload]
    found = {finding.name: finding for finding in listed}
    assert len(found) == len(listed)
    return found
