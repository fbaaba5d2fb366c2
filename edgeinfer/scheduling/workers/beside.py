"""Devices that compute side by side on the machine's own cores: they share memory bandwidth.

In: a profile whose devices were each measured alone on their cores, and the read rate of all cores together. Out: the
rates left to each when both read at once. Arithmetic is not shared. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from edgeinfer.scheduling.machine.profile import Curve, DeviceRates, ProductRates, Profile
from edgeinfer.scheduling.workers.core_plan import read_bytes_s


def side_by_side(profile: Profile, on_host: Collection[str], read_together_s: float) -> Profile:
    """The profile when the CPU and the devices `on_host` read at once; together no more than `read_together_s`."""
    cpu = profile.cpu
    alone = {rates.name: rates.read.values[-1] for rates in profile.accelerators if rates.name in on_host}
    wanted = sum(alone.values()) + (read_bytes_s(cpu, cpu.cores) if cpu.cores else cpu.read.values[-1])
    share = min(1.0, read_together_s / wanted)
    if not alone or share == 1.0:
        return profile
    devices = (_limited(cpu, share), *(_limited(d, share) if d.name in alone else d for d in profile.accelerators))
    return replace(profile, devices=devices)


def _limited(rates: DeviceRates, share: float) -> DeviceRates:
    products = {form: _product(each, share) for form, each in rates.products.items()}
    return replace(rates, read=_times(rates.read, share), products=products)


def _product(rates: ProductRates, share: float) -> ProductRates:
    """Matmuls with weights from memory: no pass reads them faster than its share."""
    most = rates.weights_read_s * share

    def limited(curve: Curve) -> Curve:
        pairs = zip(curve.at, curve.values, strict=True)
        return Curve(curve.at, tuple(min(value, most * n_tokens) for n_tokens, value in pairs))

    return replace(rates, rate=limited(rates.rate), wide=None if rates.wide is None else limited(rates.wide))


def _times(curve: Curve, factor: float) -> Curve:
    return Curve(curve.at, tuple(value * factor for value in curve.values))
