"""The machine that checks examine: where its files are, the facts that several checks need, what the system reports.

In: psutil, or what a test recorded. Out: an `ExaminedMachine`; small records, with 0, None or () for what a system does
not report through calls: CPU times of processes, swap, disks, heat. Samples the load of other processes for half a
second; measures nothing else and judges nothing.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from edgeinfer.engine.measure.idle import idle_share
from edgeinfer.engine.measure.power import read_condition
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import Topology, read_topology
from edgeinfer.scheduling.machine.topology.linux_files import number_of, numbered, text_of
from edgeinfer.scheduling.workers.governor import Condition


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


MILLI = 1e-3
PSUTIL_ERRORS = (OSError, RuntimeError, ValueError, psutil.Error)
"""What psutil raises if a system does not have something or hides it."""


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """Seconds of CPU time that a process has used."""

    pid: int
    name: str
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters that only grow. `processors_s`: time of all logical CPUs; `steal_s`: the part that a host took away.

    `n_throttled`: thermal throttling events of all CPUs; `throttled_s`: throttled time of the CPU that throttled
    longest.
    """

    processors_s: float = 0.0
    steal_s: float = 0.0
    swapped_in_bytes: int = 0
    swapped_out_bytes: int = 0
    n_throttled: int | None = None
    throttled_s: float | None = None
    processes: tuple[ProcessTime, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledInterval:
    """Counters before and after some seconds in which this process slept, and how idle the machine was meanwhile."""

    before: Counters = Counters()
    after: Counters = Counters()
    seconds: float = 0.0
    idle_share: float | None = None


@dataclass(frozen=True, slots=True)
class Swap:
    """Bytes of swap space, total and used."""

    total_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    device: str
    point: Path
    kind: str


class System(Protocol):
    """An operating system to query."""

    def counters(self) -> Counters: ...

    def condition(self) -> Condition: ...

    def swap(self) -> Swap: ...

    def mounts(self) -> tuple[Mount, ...]: ...

    def free_bytes(self, folder: Path) -> int | None: ...


class ThisSystem:
    """The system this process runs on; `root`: the root folder of its files."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def counters(self) -> Counters:
        """The counters now."""
        times = psutil.cpu_times()
        spent = times._asdict()
        doubled = spent.get("guest", 0.0) + spent.get("guest_nice", 0.0)  # already included in user and nice
        n_throttled, throttled_s = throttling(self._root)
        _, swapped_in, swapped_out = _swap()
        return Counters(
            processors_s=sum(spent.values()) - doubled,
            steal_s=spent.get("steal", 0.0),
            swapped_in_bytes=swapped_in,
            swapped_out_bytes=swapped_out,
            n_throttled=n_throttled,
            throttled_s=throttled_s,
            processes=tuple(_process_times()),
        )

    def condition(self) -> Condition:
        """Battery and temperature."""
        return read_condition()

    def swap(self) -> Swap:
        """Swap space."""
        return _swap()[0]

    def mounts(self) -> tuple[Mount, ...]:
        """All mounted file systems."""
        try:
            parts = psutil.disk_partitions(all=True)
        except PSUTIL_ERRORS:
            return ()
        return tuple(Mount(part.device, Path(part.mountpoint), part.fstype) for part in parts)

    def free_bytes(self, folder: Path) -> int | None:
        """Free bytes for a folder, or for its nearest existing parent if it does not exist yet."""
        try:
            return shutil.disk_usage(nearest_existing(folder)).free
        except OSError:
            return None


def watch(
    system: System,
    idle: Callable[[], float] = idle_share,
    clock: Callable[[], float] = time.perf_counter,
) -> SampledInterval:
    """Counters before and after the half second in which `idle` measures how idle the machine is."""
    before, started = system.counters(), clock()
    share = idle()
    return SampledInterval(before, system.counters(), clock() - started, share)


def nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next((each for each in (folder, *folder.parents) if os.path.isdir(each)), folder)


def throttling(root: Path) -> tuple[int | None, float | None]:
    """Thermal throttling events since the start, and seconds for which the most throttled processor was slowed down.

    Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu; only Intel counts, newer kernels also the time.
    """
    folder = root / "sys/devices/system/cpu"
    places = [folder / f"cpu{number}/thermal_throttle" for number in numbered(folder, "cpu")]
    counts = [number_of(place / "core_throttle_count") for place in places]
    times = [
        number_of(place / name)
        for place in places
        for name in ("core_throttle_total_time_ms", "package_throttle_total_time_ms")
    ]
    known, known_ms = [each for each in counts if each is not None], [each for each in times if each is not None]
    return (sum(known) if known else None), (max(known_ms) * MILLI if known_ms else None)


def _swap() -> tuple[Swap, int, int]:
    """Swap space, and bytes swapped in and out since the start."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # psutil warns if the system does not report paging
            told = psutil.swap_memory()
    except PSUTIL_ERRORS:
        return Swap(), 0, 0
    return Swap(int(told.total), int(told.used)), int(told.sin), int(told.sout)


def _process_times() -> Iterator[ProcessTime]:
    """CPU times of the other processes that may be read. Number 0 is no process: Windows counts idle time there."""
    own = os.getpid()
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if process.pid not in (0, own) and times is not None:
            yield ProcessTime(process.pid, process.info["name"] or "?", float(times.user + times.system))
