"""Heat and power: the temperature against its limits, thermal throttling, the battery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.app.plain_text import counted
from edgeinfer.scheduling.machine.topology.linux_files import text_of
from edgeinfer.scheduling.workers.governor import LOW_PERCENT, USUAL_CRITICAL_C, USUAL_HIGH_C, Condition

NEAR_C = 10.0
"""Within this many degrees of the high temperature, mode balanced begins to rest between passes."""
THROTTLED_SHARE = 0.01
COOL = "clear the vents, let air to it, or compute less (--mode quiet)"


@dataclass(frozen=True, slots=True)
class Heat:
    """`n_throttled`: thermal throttling events since the start; `n_throttled_now`: those within the sampled window.

    `throttled_s`: seconds spent throttled, of `uptime_s`. None: unknown.
    """

    condition: Condition = field(default_factory=Condition)
    n_throttled: int | None = None
    n_throttled_now: int = 0
    throttled_s: float | None = None
    uptime_s: float | None = None


def read(machine: ExaminedMachine) -> Heat:
    """Read the sensors and the throttling counters."""
    before, after = machine.window.before.n_throttled, machine.window.after.n_throttled
    return Heat(
        condition=machine.system.condition(),
        n_throttled=after,
        n_throttled_now=0 if before is None or after is None else max(0, after - before),
        throttled_s=machine.window.after.throttled_s,
        uptime_s=_seconds(text_of(machine.root / "proc/uptime")),
    )


def _seconds(text: str) -> float | None:
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None


def judge(facts: Heat) -> Sequence[Finding]:
    """Whether the machine is or was too hot."""
    return [*_temperature(facts.condition), *_throttling(facts), *_battery(facts.condition)]


def _temperature(condition: Condition) -> Iterator[Finding]:
    now = condition.temperature_c
    if now is None:
        return
    high = condition.high_c or USUAL_HIGH_C
    critical = condition.critical_c or USUAL_CRITICAL_C
    message = f"{now:.0f} °C, high is {high:.0f}, critical {critical:.0f}"
    if now >= min(high, critical):
        yield Finding("temperature", "slow", f"{message}: answers rest between passes", COOL, now, "°C")
    elif now >= high - NEAR_C:
        yield Finding(
            "temperature", "note", f"{message}: so near, answers begin to rest between passes", COOL, now, "°C"
        )
    else:
        yield Finding("temperature", "ok", message, value=now, unit="°C")


def _throttling(facts: Heat) -> Iterator[Finding]:
    if facts.n_throttled is None:
        return
    message = f"processors were slowed down for heat {counted(facts.n_throttled, 'time')} since the start"
    share = facts.throttled_s / facts.uptime_s if facts.throttled_s is not None and facts.uptime_s else 0.0
    if facts.throttled_s:
        message += f", {facts.throttled_s:.1f} s in all"
    if facts.n_throttled_now:
        message = (
            f"processors are being slowed down for heat ({counted(facts.n_throttled_now, 'time')} in half a second)"
        )
        yield Finding("throttling", "slow", message, COOL, facts.n_throttled_now, "times")
    elif share >= THROTTLED_SHARE:
        yield Finding(
            "throttling", "note", f"{message}: {100 * share:.0f} % of the time", COOL, facts.n_throttled, "times"
        )
    else:
        yield Finding("throttling", "ok", message, value=facts.n_throttled, unit="times")


def _battery(condition: Condition) -> Iterator[Finding]:
    percent = condition.battery_percent
    unit = None if percent is None else "%"
    left = "" if percent is None else f", {percent:.0f} % left"
    if condition.plugged_in is False:
        fix = "plug it in, or --mode max to use everything all the same"
        if percent is not None and percent < LOW_PERCENT:
            message = f"on battery{left}: below {LOW_PERCENT:.0f} % mode balanced uses half the cores"
            yield Finding("battery", "slow", message, fix, percent, unit)
        else:
            message = f"on battery{left}: many systems clock lower then"
            yield Finding("battery", "note", message, fix, percent, unit)
    elif condition.plugged_in:
        yield Finding("battery", "ok", f"plugged in{left.replace('left', 'charged')}", value=percent, unit=unit)


CHECK = Check(order=70, summary="heat, throttling and battery", read=read, judge=judge, unknown=Heat())
