"""The probe: measures this machine and returns its `Profile`.

In: whether to measure everything or only the quick part, the cores to use, the formats of interest, a folder on the
disk that holds models. Out: a `Profile` with the machine's fingerprint. Everything is measured in rounds, more of them
if other programs disturb.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.measure.idle import QuietMeter
from edgeinfer.engine.measure.profiles import fingerprint_of, machine_name
from edgeinfer.engine.probing.disk import DiskProbe
from edgeinfer.engine.probing.memory import MemoryProbe, MemoryRates
from edgeinfer.engine.probing.rates import HEAD_WIDTHS, FormatProbe, FormatRates, combined
from edgeinfer.scheduling.machine.profile import CPU, Curve, DeviceRates, Profile
from edgeinfer.scheduling.machine.topology import Topology
from edgeinfer.steps import Progress, no_progress

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMATS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "F16", "F16 high")
"""The most common formats, and that of image encoders. Others use the rates of the one with weights nearest in size."""
SHORT_FORMATS = ("Q4_0",)
FOOTPRINT_LEAST, FOOTPRINT_MOST = 96 << 20, 256 << 20
CACHES = 3
"""Weights of a measured model, as a multiple of the last-level cache, within the limits above."""
QUIET_ROUNDS, MOST_ROUNDS = 5, 8
"""Number of undisturbed rounds, and of rounds in all;"""
BUDGET_S = 17.5
"""no round begins that would end this long after the start, opening models and compiling kernels included."""

Measured = TypeVar("Measured", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """What to measure. `formats`: besides the usual ones; `cores`: None for those the topology suggests."""

    short: bool = False
    formats: tuple[str, ...] = ()
    cores: tuple[int, ...] | None = None


class ProbePart(Protocol):
    """A part of the machine that is measured round after round."""

    def round(self) -> None: ...
    def close(self) -> None: ...


def probe(topology: Topology, wanted: ProbeRequest, folder: Path, progress: Progress = no_progress) -> Profile:
    """Measure this machine. Raises DeviceUnavailable if the CPU device cannot run."""
    started = time.perf_counter()
    cores, short = wanted.cores or topology.workers(), wanted.short
    names = (wanted.formats or SHORT_FORMATS) if short else (*FORMATS, *wanted.formats)
    with ExitStack() as opened:
        memory = MemoryProbe(topology, cores, short=short)
        opened.callback(memory.close)
        formats = []
        for place, form in enumerate(dict.fromkeys(names)):
            progress(f"preparing {form}", place, len(names))
            formats.append(_format(topology, cores, form, place, short))
            opened.callback(formats[-1].close)
        disk = DiskProbe(folder, short=short)
        opened.callback(disk.close)
        meter = _measure([memory, *formats, disk], started, short, progress)
        device = _cpu(topology, memory.result(), [each.result() for each in formats])
        found = disk.result()
    return Profile(
        name=machine_name(),
        devices=(rounded(device),),
        disk=None if found is None else rounded(found),
        fingerprint=fingerprint_of(topology),
        measured=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        idle_share=round(meter.idle_share, 3),
        short=short,
    )


def _measure(parts: Sequence[ProbePart], started: float, short: bool, progress: Progress) -> QuietMeter:
    """Rounds over all parts, so that a disturbance of seconds hits each part once; medians are used."""
    meter, n_quiet, began = QuietMeter(), 0, time.perf_counter()
    n_wanted = 1 if short else QUIET_ROUNDS
    for number in range(1 if short else MOST_ROUNDS):
        progress("measuring", number, n_wanted)
        meter.begin()
        for part in parts:
            part.round()
        n_quiet += meter.end()
        now = time.perf_counter()
        if n_quiet >= n_wanted or 2 * now - began - started > BUDGET_S:  # another round would take as long
            break
        began = now
    progress("measuring", n_wanted, n_wanted)
    return meter


def _format(topology: Topology, cores: Sequence[int], form: str, place: int, short: bool) -> FormatProbe:
    """Rates of one format; the first formats also measure heads of usual widths and what all formats share."""
    width = HEAD_WIDTHS[place % len(HEAD_WIDTHS)]
    options = DeviceOptions(len(cores), tuple(cores), adapts=False)
    return FormatProbe(CPU, options, form, footprint(topology), width, short=short, common=place < len(HEAD_WIDTHS))


def footprint(topology: Topology) -> int:
    """Bytes of weights that the last-level cache does not hold, or holds little of."""
    return min(FOOTPRINT_MOST, max(FOOTPRINT_LEAST, CACHES * topology.l3_bytes), max(1, topology.available_bytes // 8))


def _cpu(topology: Topology, memory: MemoryRates, found: Sequence[FormatRates]) -> DeviceRates:
    attention, op_s, element_rate, pass_s, token_s = combined([rates for rates in found if rates.whole is None])
    speeds = found[0].speeds
    cores = memory.cores
    if len(speeds) == len(cores):
        cores = tuple(replace(core, speed=speed) for core, speed in zip(cores, speeds, strict=True))
    return DeviceRates(
        name=CPU,
        kind=CPU,
        memory_bytes=topology.total_bytes,
        read=_as_fast_as_products(memory.read, found),
        products=MappingProxyType({rates.form: rates.product for rates in found}),
        attention=(*attention, *(rates.whole for rates in found if rates.whole is not None)),
        element_rate=element_rate,
        op_s=op_s,
        pass_s=pass_s,
        token_s=token_s,
        cores=cores,
        nodes=memory.nodes,
    )


def _as_fast_as_products(read: Curve, found: Sequence[FormatRates]) -> Curve:
    """The read curve, raised to the speed at which matmuls read weights that no cache holds."""
    seen = max(rates.product.weights_read_s * rates.product.bytes_per_weight for rates in found)
    return Curve(read.at, tuple(max(value, seen) for value in read.values))


def rounded(found: Measured) -> Measured:
    """A record with all its rates and times, nested ones too, rounded by `significant` for human readers."""
    changes = {}
    for each in fields(found):
        value = getattr(found, each.name)
        changes[each.name] = _rounded(value)
    return replace(found, **changes)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, tuple):
        return tuple(_rounded(each) for each in value)
    if isinstance(value, Mapping):
        return MappingProxyType({key: _rounded(each) for key, each in value.items()})
    return rounded(value) if is_dataclass(value) and not isinstance(value, type) else value


def significant(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")
