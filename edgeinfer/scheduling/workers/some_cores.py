"""The rates of a machine if only some of its cores take part.

In: the CPU's rates and a worker pool of its cores. Out: rates as a probe of these cores alone would measure them. Reads
from memory scale with the worker pool's read rate, arithmetic with its speed, barriers with its size. Chooses nothing.
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
        profile, devices=(_limited(cpu, min(1.0, speed), min(1.0, read), worker_pool), *profile.accelerators)
    )


def _limited(cpu: DeviceRates, speed: float, read: float, worker_pool: Sequence[CoreRates]) -> DeviceRates:
    return replace(
        cpu,
        read=_times(cpu.read, read),
        products={form: _product(rates, speed, read) for form, rates in cpu.products.items()},
        attention=tuple(replace(rates, rate=_times(rates.rate, speed)) for rates in cpu.attention),
        element_rate=_times(cpu.element_rate, speed),
        op_s=cpu.op_s * op_factor(cpu, worker_pool),
        cores=tuple(core for core in cpu.cores if core in worker_pool),
    )


def _product(rates: ProductRates, speed: float, read: float) -> ProductRates:
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


def _times(curve: Curve, factor: float) -> Curve:
    return Curve(curve.at, tuple(value * factor for value in curve.values))
