"""The governor: how much of the machine may be used now, from the user's mode and the state of the machine.

In: a mode, the kinds of the workers' cores, and a `Condition` from time to time. Out: a `PowerPolicy`. Pure: numbers
in, decisions out. Knows no sensors, threads or clocks, and its decisions never change a text.

max       every core all the time, drafts as predicted. Only the critical temperature slows it.
balanced  as max while the machine is plugged in and cool. Within 10 °C of the high temperature it computes for less and
          less of the time, down to half of it at the high one. Unplugged it does nothing in idle time; below 30 % of
          the battery it behaves as battery does, until plugged in or above 35 %.
quiet     half the cores, efficient ones first, for 60 % of the time, and small drafts: low average power over seconds
          keeps the fan off. From 25 °C below the high temperature on it computes less, down to 30 % of the time 10 °C
          below.
battery   fewest joules per token. Half the cores, efficient ones first: decoding is bound by memory, and half of the
          cores keep it busy at less power. No rests, because the package draws power while it waits too: finishing
          sooner lets it sleep sooner. Passes of a few tokens: draft trees are in order of probability, and beyond the
          first tokens more are rejected than accepted, which costs joules even where it costs no time. When hot, it
          computes less as balanced does.

At the critical temperature every mode computes a quarter of the time. Policies follow a falling temperature only after
3 °C, to avoid oscillation; a higher temperature never allows more of anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.settings import MOST_DRAFTED, Mode

SPARING_ORDER: tuple[CoreKind, ...] = ("efficiency", "low-power", "performance")
"""Order of core kinds when saving energy. Low-power cores come second: alone they are too slow to finish soon."""
LOW_PERCENT, ENOUGH_PERCENT = 30.0, 35.0
"""Battery level below which balanced begins to save, and above which it stops."""
COOLED_C = 3.0
"""Degrees by which it must get cooler before that counts."""
USUAL_HIGH_C, USUAL_CRITICAL_C = 85.0, 100.0
"""Used if the system does not report them."""
GAP_C = 5.0
"""Least distance of the two: many systems report one temperature for both, which would react too late."""
HOT_DUTY = 0.5
"""Factor on a mode's own duty at the hottest end of easing."""
CRITICAL_DUTY = 0.25
DUTY_STEPS = 20
"""Duties are multiples of one part in this many: smaller differences are not worth reporting."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of the machine; None where the system does not report it.

    plugged_in, battery_percent  both None if there is no battery
    temperature_c                of the CPU
    high_c, critical_c           the manufacturer's limits
    """

    plugged_in: bool | None = None
    battery_percent: float | None = None
    temperature_c: float | None = None
    high_c: float | None = None
    critical_c: float | None = None


@dataclass(frozen=True, slots=True)
class PowerPolicy:
    """What may be used until the next policy.

    most_workers  of a step, at least 1
    ranks         of each worker: lower ones take part first, among equal ones the fastest; () if all are equal
    duty          part of the time spent computing, above 0 and at most 1
    most_drafted  tokens of a pass, at least 1: the root alone
    idle_work     whether to prepare things while nothing is generated
    reason        why, in a line for people
    """

    most_workers: int
    ranks: tuple[int, ...]
    duty: float
    most_drafted: int
    idle_work: bool
    reason: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """A mode: its share of the workers and of the time, tokens of a pass, and its reaction to heat.

    `easing_c`: degrees below the high temperature where it begins to compute less, and where it reaches HOT_DUTY.
    """

    share: float = 1.0
    duty: float = 1.0
    most_drafted: int = MOST_DRAFTED
    is_sparing: bool = False
    easing_c: tuple[float, float] | None = (10.0, 0.0)


RULES: Mapping[Mode, _Rule] = MappingProxyType(
    {
        "max": _Rule(easing_c=None),
        "balanced": _Rule(),
        "quiet": _Rule(0.5, 0.6, 4, is_sparing=True, easing_c=(25.0, 10.0)),
        "battery": _Rule(0.5, 1.0, 8, is_sparing=True),
    }
)


class Governor:
    """Policies for a mode, one condition after another. `kinds`: of each worker's core, at least one."""

    def __init__(self, mode: Mode, kinds: Sequence[CoreKind]) -> None:
        self.mode: Mode = mode
        self._kinds = tuple(kinds)
        self._felt_c: float | None = None
        self._saves = False

    def policy(self, condition: Condition) -> PowerPolicy:
        """What may be used in this condition, given those before."""
        self._felt_c = _felt(self._felt_c, condition.temperature_c)
        self._saves = self.mode == "balanced" and _is_low(condition, self._saves)
        rule = RULES["battery" if self._saves else self.mode]
        n_workers = len(self._kinds)
        most_workers, duty = max(1, int(rule.share * n_workers)), _duty(rule, self._felt_c, condition)
        works_idly = not rule.is_sparing and duty == 1 and (self.mode == "max" or condition.plugged_in is not False)
        return PowerPolicy(
            most_workers=most_workers,
            ranks=self._ranks() if rule.is_sparing else (),
            duty=duty,
            most_drafted=rule.most_drafted,
            idle_work=works_idly,
            reason=self._reason(most_workers, duty, duty < rule.duty, condition),
        )

    def _ranks(self) -> tuple[int, ...]:
        """Ranks of the workers when saving energy."""
        return tuple(map(SPARING_ORDER.index, self._kinds)) if len(set(self._kinds)) > 1 else ()

    def _reason(self, most_workers: int, duty: float, is_hot: bool, condition: Condition) -> str:
        n_workers = len(self._kinds)
        parts = [f"{most_workers} of {n_workers} cores" if most_workers < n_workers else "all cores"]
        if duty < 1:
            parts.append(f"computing {100 * duty:.0f} % of the time")
        if self._saves:
            percent = condition.battery_percent
            parts.append("on battery" if percent is None else f"battery at {percent:.0f} %")
        if is_hot and condition.temperature_c is not None:
            parts.append(f"CPU at {condition.temperature_c:.0f} °C, high is {_limits(condition)[0]:.0f} °C")
        return f"{self.mode}: {', '.join(parts)}"


def _felt(before: float | None, now: float | None) -> float | None:
    """A temperature that follows a rise at once, and a fall with a lag of COOLED_C."""
    return now if now is None or before is None else max(now, min(before, now + COOLED_C))


def _is_low(condition: Condition, was_low: bool) -> bool:
    """Whether the battery should be saved; one of unknown charge should."""
    if condition.plugged_in is not False:
        return False
    percent = condition.battery_percent
    return percent is None or percent < LOW_PERCENT or (was_low and percent <= ENOUGH_PERCENT)


def _limits(condition: Condition) -> tuple[float, float]:
    """The effective high and critical temperatures."""
    high = USUAL_HIGH_C if condition.high_c is None else condition.high_c
    critical = condition.critical_c
    if critical is None:
        critical = max(USUAL_CRITICAL_C, high + GAP_C)
    return min(high, critical - GAP_C), critical


def _duty(rule: _Rule, felt_c: float | None, condition: Condition) -> float:
    """The part of the time to compute."""
    if felt_c is None:
        return rule.duty
    high, critical = _limits(condition)
    if felt_c >= critical:
        return CRITICAL_DUTY
    if rule.easing_c is None:
        return rule.duty
    begin_c, end_c = (high - below for below in rule.easing_c)
    heat = min(1.0, max(0.0, (felt_c - begin_c) / (end_c - begin_c)))
    return round(DUTY_STEPS * rule.duty * (1 - (1 - HOT_DUTY) * heat)) / DUTY_STEPS
