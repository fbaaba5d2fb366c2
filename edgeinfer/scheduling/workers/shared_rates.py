"""The rates of a machine that is used in part: by some of its cores, or by devices that share its memory bandwidth.

In: a profile, measured with all cores and with each device alone; the cores that take part, or the devices that compute
side by side on the machine's own cores and the rate at which all read together. Out: rates as a probe of these cores
alone would measure them, or what is left to each device when all read at once. Reads from memory scale with the worker
pool's read rate, arithmetic with its speed, barriers with its size. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from edgeinfer.scheduling.machine.profile import CoreRates, Curve, DeviceRates, ProductRates, Profile
from edgeinfer.scheduling.workers.core_plan import op_factor, read_bytes_s


def with_cores(profile: Profile, cores: Collection[int]) -> Profile:
    """The machine with these of its cores. Cores that the profile does not know are as fast as the mean."""
    cpu = profile.cpu
    worker_pool = tuple(core for core in cpu.cores if core.number in cores)
    if not cpu.cores or len(worker_pool) == len(cpu.cores):
        return profile
    unknown = len(set(cores)) - len(worker_pool)
    total = sum(core.speed for core in cpu.cores)
    speed = (sum(core.speed for core in worker_pool) + unknown * total / len(cpu.cores)) / total
    read = read_bytes_s(cpu, worker_pool or cpu.cores[:1]) / read_bytes_s(cpu, cpu.cores)
    return replace(
        profile, devices=(_computing(cpu, min(1.0, speed), min(1.0, read), worker_pool), *profile.accelerators)
    )


def _computing(cpu: DeviceRates, speed: float, read: float, worker_pool: Sequence[CoreRates]) -> DeviceRates:
    return replace(
        cpu,
        read=_times(cpu.read, read),
        products={form: _computing_product(rates, speed, read) for form, rates in cpu.products.items()},
        attention=tuple(replace(rates, rate=_times(rates.rate, speed)) for rates in cpu.attention),
        element_rate=_times(cpu.element_rate, speed),
        op_s=cpu.op_s * op_factor(cpu, worker_pool),
        cores=tuple(core for core in cpu.cores if core in worker_pool),
    )


def _computing_product(rates: ProductRates, speed: float, read: float) -> ProductRates:
    if rates.cached is None:
        return replace(rates, rate=_times(rates.rate, speed), wide=rates.wide and _times(rates.wide, speed))
    return replace(
        rates,
        rate=_from_memory(rates.rate, rates.cached, speed, read),
        wide=rates.wide and _from_memory(rates.wide, rates.cached, speed, read),
        cached=_times(rates.cached, speed),
    )


def _from_memory(rate: Curve, cached: Curve, speed: float, read: float) -> Curve:
    """Seconds per weight: the time with a cached weight is arithmetic, and the extra time from memory is reading."""
    values = []
    for n_tokens, found in zip(rate.at, rate.values, strict=True):
        arithmetic = min(1 / found, 1 / cached(n_tokens))
        values.append(1 / (arithmetic / speed + (1 / found - arithmetic) / read))
    return Curve(rate.at, tuple(values))


def side_by_side(profile: Profile, on_host: Collection[str], read_together_s: float) -> Profile:
    """The profile when the CPU and the devices `on_host` read at once; together no more than `read_together_s`."""
    cpu = profile.cpu
    alone = {rates.name: rates.read.values[-1] for rates in profile.accelerators if rates.name in on_host}
    wanted = sum(alone.values()) + (read_bytes_s(cpu, cpu.cores) if cpu.cores else cpu.read.values[-1])
    share = min(1.0, read_together_s / wanted)
    if not alone or share == 1.0:
        return profile
    devices = (_reading(cpu, share), *(_reading(d, share) if d.name in alone else d for d in profile.accelerators))
    return replace(profile, devices=devices)


def _reading(rates: DeviceRates, share: float) -> DeviceRates:
    products = {form: _reading_product(each, share) for form, each in rates.products.items()}
    return replace(rates, read=_times(rates.read, share), products=products)


def _reading_product(rates: ProductRates, share: float) -> ProductRates:
    """Matmuls with weights from memory: no pass reads them faster than its share."""
    most = rates.weights_read_s * share

    def limited(curve: Curve) -> Curve:
        pairs = zip(curve.at, curve.values, strict=True)
        return Curve(curve.at, tuple(min(value, most * n_tokens) for n_tokens, value in pairs))

    return replace(rates, rate=limited(rates.rate), wide=None if rates.wide is None else limited(rates.wide))


def _times(curve: Curve, factor: float) -> Curve:
    return Curve(curve.at, tuple(value * factor for value in curve.values))
