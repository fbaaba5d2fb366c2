"""The machine as several devices share it: rates of each on the cores left to it, measured once and stored.

In: device names, the topology, formats of weights. Out: a `Profile` with the CPU and the other devices, each on its own
cores. Devices that compute on the machine's cores get equal parts of them. Stored beside the machine's profile, by
names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from edgeinfer.backends.base import DeviceKind, DeviceOptions, kind_of, open_device
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.probing.accelerator import USUAL, AcceleratorProbe
from edgeinfer.engine.probing.link import measured_exchange, measured_link
from edgeinfer.engine.probing.probe import ProbeRequest, footprint, probe, rounded
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.models.store import default_root
from edgeinfer.process import require_cpus
from edgeinfer.scheduling.machine.profile import CPU, QUIET_SHARE, Curve, DeviceRates, Profile
from edgeinfer.scheduling.machine.topology import Topology
from edgeinfer.scheduling.workers.core_plan import read_bytes_s
from edgeinfer.scheduling.workers.shared_rates import side_by_side, with_cores
from edgeinfer.steps import Progress

METHOD = "whole models"
"""Version of the method: combinations measured with another version are measured again."""
HOST_MEMORY_SHARE = 0.5
"""Share of the machine's memory for a device that has no memory of its own or does not report it."""


def on_host(name: str) -> bool:
    """Whether a device computes on the machine's own cores. Raises UnknownKey."""
    kind = kind_of(name)
    return isinstance(kind, DeviceKind) and name.partition(":")[2] in kind.host_targets


def cores_of(names: Sequence[str], cores: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The cores of each device that computes on the machine's, in order. Raises BadSetting if there are too few."""
    sharing = [name for name in names if on_host(name)]
    if len(cores) < len(sharing):
        raise BadSetting(f"{', '.join(sharing)} share {len(cores)} cores: each needs one; name fewer devices")
    cuts = [len(cores) * place // max(1, len(sharing)) for place in range(len(sharing) + 1)]
    return {name: tuple(cores[cuts[place] : cuts[place + 1]]) for place, name in enumerate(sharing)}


def options_for(name: str, shares: dict[str, tuple[int, ...]], options: DeviceOptions) -> DeviceOptions:
    """Options for a device beside others: its own cores, if it computes on the machine's."""
    own = shares.get(name)
    return options if own is None else replace(options, n_workers=len(own), cores=own, adapts=False)


def machine_profile(topology: Topology, formats: tuple[str, ...], progress: Progress) -> Profile:
    """The profile of the CPU with all its cores: stored, or measured briefly now and stored if undisturbed."""
    store = ProfileStore()
    found = store.find(fingerprint_of(topology))
    if found is None:
        found = probe(topology, ProbeRequest(True, formats), default_root(), progress)
        if found.idle_share is None or found.idle_share >= QUIET_SHARE:
            store.save(found)
    return found


def alone_profiles(
    names: Sequence[str], topology: Topology, cores: Sequence[int], formats: tuple[str, ...], progress: Progress
) -> dict[str, Profile]:
    """The machine as each of these devices has it to itself. Raises as `combined_profile`."""
    found = {CPU: with_cores(machine_profile(topology, formats, progress), cores)}
    for name in names:
        if name != CPU:
            found[name] = combined_profile((name,), topology, cores, formats, progress)
    return found


def combined_profile(
    names: Sequence[str],
    topology: Topology,
    cores: Sequence[int],
    formats: tuple[str, ...],
    progress: Progress,
    *,
    again: bool = False,
) -> Profile:
    """The machine as these devices share it; measured if `again` is set or nothing is stored.

    Raises DeviceUnavailable, DeviceFailed, BadSetting.
    """
    require_cpus(cores)
    shares, key, store = cores_of(ordered(names), cores), _key(names, topology, cores), ProfileStore()
    machine = machine_profile(topology, formats, progress)
    kept = None if again else store.find(key)
    others = [name for name in ordered(names) if name != CPU]
    devices = {} if kept is None else {rates.name: rates for rates in kept.accelerators}
    is_new = False
    for place, name in enumerate(others):
        known = devices.get(name)
        missing = tuple(form for form in formats if known is None or form not in known.products)
        if missing:
            progress(f"measuring {name}", place, len(others))
            own = options_for(name, shares, DeviceOptions())
            host = options_for(CPU, shares, DeviceOptions()) if CPU in names else None
            found = rounded(accelerator_rates(name, own, topology, missing, host))
            devices[name], is_new = found if known is None else _joined(known, found), True
    measured = replace(machine, devices=(machine.cpu, *(devices[name] for name in others)), short=True, fingerprint=key)
    if is_new:
        progress("measuring devices", len(others), len(others))
        store.save(measured)
    return _as_shared(measured, machine, shares)


def _joined(known: DeviceRates, found: DeviceRates) -> DeviceRates:
    """New rates, with those of formats measured before."""
    fastest = max(known.read.values[-1], found.read.values[-1])
    return replace(found, products={**known.products, **found.products}, read=Curve.level(fastest))


def kept_combination(names: Sequence[str], topology: Topology, cores: Sequence[int]) -> Profile | None:
    """The machine as these devices share it, if that was measured. Raises BadSetting."""
    store = ProfileStore()
    kept, machine = store.find(_key(names, topology, cores)), store.find(fingerprint_of(topology))
    return None if kept is None else _as_shared(kept, machine or kept, cores_of(ordered(names), cores))


def ordered(names: Sequence[str]) -> tuple[str, ...]:
    """The same devices, the CPU first, the others by name."""
    return tuple(sorted(names, key=lambda name: (name != CPU, name)))


def _key(names: Sequence[str], topology: Topology, cores: Sequence[int]) -> str:
    """The key under which a combination on these cores is stored."""
    numbers = hashlib.sha256(repr((METHOD, tuple(cores))).encode()).hexdigest()[:6]
    devices = "+".join(name.replace(":", "_") for name in ordered(names))
    return f"{fingerprint_of(topology)}-{devices}-{len(cores)}-{numbers}"


def _as_shared(kept: Profile, machine: Profile, shares: dict[str, tuple[int, ...]]) -> Profile:
    """Rates of the devices working together; without the CPU among them, of each alone."""
    if CPU not in shares:
        return replace(kept, devices=(machine.cpu, *kept.accelerators))
    read_s = read_bytes_s(machine.cpu, machine.cpu.cores) if machine.cpu.cores else machine.cpu.read.values[-1]
    shared = replace(kept, devices=(with_cores(machine, shares[CPU]).cpu, *kept.accelerators))
    return side_by_side(shared, tuple(shares), read_s)


def accelerator_rates(
    name: str,
    options: DeviceOptions,
    topology: Topology,
    formats: tuple[str, ...],
    host: DeviceOptions | None = None,
) -> DeviceRates:
    """Measure a device that runs fragments, with weights of these formats, and its exchange of rows with a `host`.

    Raises DeviceUnavailable, DeviceFailed.
    """
    device = open_device(name, options)
    try:
        fragments, memory = device.capabilities.fragments, device.capabilities.memory
        if fragments is None:
            raise DeviceUnavailable(f"the device {name} cannot run part of a model, so it cannot be measured")
        n_bytes = None if memory is None else memory.memory_bytes
        if n_bytes is None:
            n_bytes = int(topology.total_bytes * HOST_MEMORY_SHARE)
        link = measured_link(fragments, formats[0])
        measured = AcceleratorProbe(device, footprint(topology), USUAL)
        kind = f"{name}, {options.n_workers or 'all'} threads"
        found = measured.rates(name, kind, n_bytes, formats, link)
        if host is None:
            return found
        cpu = open_device(CPU, host)
        try:
            return replace(found, link=measured_exchange(cpu, device, name, formats[0], found.op_s))
        finally:
            cpu.close()
    finally:
        device.close()
