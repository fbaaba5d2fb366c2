"""Memory channels: guesses their number from the read rates of one core and of all cores.

Decoding is memory-bound, so a second channel nearly doubles its speed: on many machines this is the cheapest upgrade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine

SUSPECT_CORES = 4
SUSPECT_RATIO = 1.3
"""One core reads about half of what two channels provide, and most of what one provides."""
SUSPECT_BYTES_S = 40e9
"""One channel gives at most 45 GB/s with the fastest usual modules (DDR5-5600), in practice about 90 % of that."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Measured read rates in bytes per second, of one core alone and of all cores together."""

    is_virtual: bool = False
    n_cores: int = 0
    alone_bytes_s: float | None = None
    together_bytes_s: float | None = None


def read(machine: ExaminedMachine) -> Channels:
    """The rates in the machine's profile."""
    if machine.profile is None:
        return Channels(machine.is_virtual)
    rates = machine.profile.cpu
    alone = max((core.read_bytes_s for core in rates.cores), default=None)
    return Channels(machine.is_virtual, len(rates.cores), alone, rates.read.values[-1])


def judge(facts: Channels) -> Sequence[Finding]:
    """Whether the machine may have only one memory channel."""
    alone, together = facts.alone_bytes_s, facts.together_bytes_s
    if alone is None or together is None:
        return []
    message = f"{facts.n_cores} cores read {together / 1e9:.1f} GB/s together, one alone {alone / 1e9:.1f}"
    rate = round(together / 1e9, 1)
    enough_cores, real = facts.n_cores >= SUSPECT_CORES, not facts.is_virtual
    if enough_cores and real and together < SUSPECT_RATIO * alone and together < SUSPECT_BYTES_S:
        message += ": perhaps a single channel, which rates alone do not prove"
        fix = "sudo dmidecode -t memory shows what is in the slots; a second module would nearly double the rate"
        return [Finding("memory-channels", "note", message, fix, rate, "GB/s")]
    return [Finding("memory-channels", "ok", message, value=rate, unit="GB/s")]


CHECK = Check(order=50, summary="memory channels", read=read, judge=judge, unknown=Channels())
