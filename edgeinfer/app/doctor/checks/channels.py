"""Memory channels: what is in the slots, by the firmware's word, or what reading rates let one suspect.

Decoding is bound by memory, so that a second channel nearly doubles it: the cheapest fix there is for many machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.dmi import MemoryDevice, memory_devices
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.models.download.space import size_text

TABLES = "sys/firmware/dmi/tables/DMI"
MOST_TABLE_BYTES = 1 << 20
NAMED_SLOTS = 4
"""Up to so many, letters in names of slots mean channels; on servers they may mean processors."""
SLOWED_SHARE = 0.95
SUSPECT_CORES = 4
SUSPECT_RATIO = 1.3
"""One core reads about half of what two channels give, and most of what one gives;"""
SUSPECT_BYTES_S = 40e9
"""one channel gives at most 45 GB/s with the fastest usual modules (DDR5-5600), about nine tenths of it in practice."""


@dataclass(frozen=True, slots=True)
class Channels:
    """`devices` by the firmware, () where they cannot be read; rates as they were measured, in bytes per second."""

    devices: tuple[MemoryDevice, ...] = ()
    is_virtual: bool = False
    n_cores: int = 0
    alone_bytes_s: float | None = None
    together_bytes_s: float | None = None


def read(machine: ExaminedMachine) -> Channels:
    """The firmware's tables, which many systems show to root only, and the profile's rates."""
    try:
        with (machine.root / TABLES).open("rb") as file:
            tables = file.read(MOST_TABLE_BYTES)
    except OSError:
        tables = b""
    rates = None if machine.profile is None else machine.profile.cpu
    return Channels(
        devices=memory_devices(tables),
        is_virtual=machine.is_virtual,
        n_cores=len(rates.cores) if rates else 0,
        alone_bytes_s=max((core.read_bytes_s for core in rates.cores), default=None) if rates else None,
        together_bytes_s=rates.read.values[-1] if rates else None,
    )


def judge(facts: Channels) -> Sequence[Finding]:
    """One channel or more: known, suspected, or nothing to be said."""
    filled = [device for device in facts.devices if device.size_bytes and device.kind]
    if filled and not facts.is_virtual:
        return [_known(facts, filled), *_below_rating(filled)]
    return list(_suspected(facts))


def _known(facts: Channels, filled: Sequence[MemoryDevice]) -> Finding:
    n_channels, n_slots = _n_channels(facts.devices, filled), len(facts.devices)
    size = size_text(sum(device.size_bytes for device in filled))
    speed = filled[0].configured_mt_s or filled[0].rated_mt_s
    what = f"{filled[0].kind}-{speed}" if speed else filled[0].kind
    modules = "1 module" if len(filled) == 1 else f"{len(filled)} modules"
    message = f"{size} of {what}, {modules} in {n_slots} slot{'s' * (n_slots != 1)}"
    if n_channels == 1:
        fix = (
            "a second module of the same kind, in the other channel's slot: decoding gets up to twice as fast"
            if n_slots > 1
            else "there is no second slot: a smaller quant decodes faster"
        )
        return Finding("memory-channels", "slow", f"a single channel{_rate(facts)}: {message}", fix, 1, "channels")
    if n_channels is None:
        return Finding("memory-channels", "ok", f"{message}{_rate(facts)}", value=len(filled), unit="modules")
    return Finding(
        "memory-channels", "ok", f"{message}, {n_channels} channels{_rate(facts)}", None, n_channels, "channels"
    )


def _n_channels(devices: Sequence[MemoryDevice], filled: Sequence[MemoryDevice]) -> int | None:
    """Channels in use, None where the firmware does not tell."""
    if any(not device.is_module for device in filled):
        return None
    if len(filled) == 1:
        return 1
    names = {device.channel for device in devices}
    if len(devices) > NAMED_SLOTS or "" in names or len(names) < 2:
        return None
    return len({device.channel for device in filled})


def _below_rating(filled: Sequence[MemoryDevice]) -> Iterator[Finding]:
    slowest = min(filled, key=lambda device: device.configured_mt_s)
    if 0 < slowest.configured_mt_s < SLOWED_SHARE * slowest.rated_mt_s:
        message = f"memory runs at {slowest.configured_mt_s} MT/s, its modules are made for {slowest.rated_mt_s}"
        fix = "choose the modules' profile in the firmware's set-up (XMP or EXPO), if the board and the CPU allow it"
        yield Finding("memory-speed", "note", message, fix, slowest.configured_mt_s, "MT/s")


def _suspected(facts: Channels) -> Iterator[Finding]:
    alone, together = facts.alone_bytes_s, facts.together_bytes_s
    if alone is None or together is None:
        return
    message = f"{facts.n_cores} cores read {together / 1e9:.1f} GB/s together, one alone {alone / 1e9:.1f}"
    is_suspect = (
        facts.n_cores >= SUSPECT_CORES
        and together < SUSPECT_RATIO * alone
        and together < SUSPECT_BYTES_S
        and not facts.is_virtual
    )
    if is_suspect:
        message += ": perhaps a single channel, which rates alone do not prove"
        fix = "sudo dmidecode -t memory shows what is in the slots; a second module would nearly double the rate"
        yield Finding("memory-channels", "note", message, fix, round(together / 1e9, 1), "GB/s")
    else:
        yield Finding("memory-channels", "ok", message, value=round(together / 1e9, 1), unit="GB/s")


def _rate(facts: Channels) -> str:
    return "" if facts.together_bytes_s is None else f" ({facts.together_bytes_s / 1e9:.1f} GB/s measured)"


CHECK = Check(order=50, summary="memory channels", read=read, judge=judge, unknown=Channels())
