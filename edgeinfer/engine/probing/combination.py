"""The machine as several devices share it: rates of each on the cores that are left to it, measured once and kept.

In: device names, the topology, formats of weights. Out: a `Profile` of the CPU on its cores and of the others on
theirs. Devices on the machine's own cores get equal parts of them. Kept beside the machine's profile, by names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeinfer.affinity import require_cpus
from edgeinfer.backends.base import DeviceKind, DeviceOptions, FragmentDevice, Progress, kind_of, open_device
from edgeinfer.engine.probing.accelerator import AcceleratorProbe
from edgeinfer.engine.probing.machine import fingerprint_of
from edgeinfer.engine.probing.probe import Wanted, footprint, probe, rounded
from edgeinfer.engine.profiles import ProfileStore
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.models.store import default_root
from edgeinfer.scheduling.beside import side_by_side
from edgeinfer.scheduling.core_plan import read_bytes_s
from edgeinfer.scheduling.profile import CPU, DeviceRates, Profile
from edgeinfer.scheduling.some_cores import with_cores
from edgeinfer.scheduling.topology import Topology

HOST_MEMORY_SHARE = 0.5
"""Of the machine's memory that a device on its cores may take."""


def on_host(name: str) -> bool:
    """Whether a device computes on the machine's own cores. Raises UnknownKey."""
    kind = kind_of(name)
    return isinstance(kind, DeviceKind) and name.partition(":")[2] in kind.host_targets


def cores_of(names: Sequence[str], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The cores of each device on the machine's own, the first ones for the first. Raises BadSetting for too few."""
    sharing = [name for name in names if on_host(name)]
    if len(cores) < len(sharing):
        raise BadSetting(f"{', '.join(sharing)} share {len(cores)} cores: each needs one; name fewer devices")
    cuts = [len(cores) * place // max(1, len(sharing)) for place in range(len(sharing) + 1)]
    return {name: tuple(cores[cuts[place] : cuts[place + 1]]) for place, name in enumerate(sharing)}


def options_for(name: str, shares: dict[str, tuple[int, ...]], options: DeviceOptions) -> DeviceOptions:
    """What a device is opened with beside others: its own cores, if it computes on the machine's."""
    own = shares.get(name)
    return options if own is None else replace(options, n_workers=len(own), cores=own, adapts=False)


def machine_profile(topology: Topology, formats: tuple[str, ...], progress: Progress) -> Profile:
    """The profile of the CPU with all its cores, kept or measured now in short."""
    kept = ProfileStore().find(fingerprint_of(topology))
    return probe(topology, Wanted(True, formats), default_root(), progress) if kept is None else kept


def combined_profile(
    names: Sequence[str],
    topology: Topology,
    cores: Sequence[int],
    formats: tuple[str, ...],
    progress: Progress,
    *,
    again: bool = False,
) -> Profile:
    """The machine as these devices share it, measured `again` or where nothing is kept.

    Raises DeviceUnavailable, DeviceFailed, BadSetting.
    """
    require_cpus(cores)
    shares, key = cores_of(names, cores), _key(names, topology, cores)
    store = ProfileStore()
    machine = machine_profile(topology, formats, progress)
    kept = None if again else store.find(key)
    missing = [form for form in formats if kept is None or any(form not in d.products for d in kept.accelerators)]
    if missing:
        kept = _measured(names, shares, topology, formats, machine, progress)
        store.save(replace(kept, fingerprint=key))
    assert kept is not None
    return _as_shared(kept, machine, shares)


def kept_combination(names: Sequence[str], topology: Topology, cores: Sequence[int]) -> Profile | None:
    """The machine as these devices share it, if that was measured. Raises BadSetting."""
    store = ProfileStore()
    kept, machine = store.find(_key(names, topology, cores)), store.find(fingerprint_of(topology))
    return None if kept is None else _as_shared(kept, machine or kept, cores_of(names, cores))


def _key(names: Sequence[str], topology: Topology, cores: Sequence[int]) -> str:
    """What a combination is kept under."""
    return f"{fingerprint_of(topology)}-{'+'.join(name.replace(':', '_') for name in names)}-{len(cores)}"


def _as_shared(kept: Profile, machine: Profile, shares: dict[str, tuple[int, ...]]) -> Profile:
    """Rates of the devices as they work together; without the CPU among them, of each alone."""
    if CPU not in shares:
        return replace(kept, devices=(machine.cpu, *kept.accelerators))
    read_s = read_bytes_s(machine.cpu, machine.cpu.cores) if machine.cpu.cores else machine.cpu.read.values[-1]
    shared = replace(kept, devices=(with_cores(machine, shares[CPU]).cpu, *kept.accelerators))
    return side_by_side(shared, tuple(shares), read_s)


def _measured(
    names: Sequence[str],
    shares: dict[str, tuple[int, ...]],
    topology: Topology,
    formats: tuple[str, ...],
    machine: Profile,
    progress: Progress,
) -> Profile:
    """Every device but the CPU, each alone on its cores."""
    found = []
    others = [name for name in names if name != CPU]
    for place, name in enumerate(others):
        progress(f"measuring {name}", place, len(others))
        found.append(accelerator_rates(name, options_for(name, shares, DeviceOptions()), topology, formats))
    progress("measuring devices", len(others), len(others))
    return replace(machine, devices=(machine.cpu, *(rounded(rates) for rates in found)), short=True)


def accelerator_rates(name: str, options: DeviceOptions, topology: Topology, formats: tuple[str, ...]) -> DeviceRates:
    """Measure a device that runs fragments, with weights of these formats. Raises DeviceUnavailable, DeviceFailed."""
    device = open_device(name, options)
    try:
        if not isinstance(device, FragmentDevice):
            raise DeviceUnavailable(f"the device {name} cannot run part of a model, so it cannot be measured")
        memory = int(topology.total_bytes * HOST_MEMORY_SHARE)
        rates: DeviceRates | None = None
        for form in formats:
            measured = AcceleratorProbe(device, form, footprint(topology))
            try:
                each = measured.rates(name, f"{name}, {options.n_workers or 'all'} threads", memory)
            finally:
                measured.close()
            rates = each if rates is None else replace(rates, products={**rates.products, **each.products})
        assert rates is not None
        return rates
    finally:
        device.close()
