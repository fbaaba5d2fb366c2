"""CPU clocks that the system allows: governors, limits, turbo, the energy preference, the power profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.scheduling.machine.topology.linux_files import number_of, numbered, text_of

CPUFREQ = "sys/devices/system/cpu/cpufreq"
SELF_GOVERNING = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers that choose clocks themselves: their "powersave" is no limit, and their preference is in another file."""
LIMITED_SHARE = 0.95
PERFORMANCE = "powerprofilesctl set performance"
GOVERN = "echo performance | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor"


@dataclass(frozen=True, slots=True)
class ClockPolicy:
    """Clock policy of a group of cores. Clocks in Hz, None if unknown; `limit_hz` is the highest the system allows."""

    driver: str = ""
    governor: str = ""
    preference: str = ""
    now_hz: float | None = None
    limit_hz: float | None = None
    max_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Clocks:
    """`turbo`: whether clocks above the nominal one are allowed, None if unknown.

    `profile`: the platform's power profile.
    """

    policies: tuple[ClockPolicy, ...] = ()
    turbo: bool | None = None
    profile: str = ""


def read(machine: ExaminedMachine) -> Clocks:
    """What Linux reports about clocks; empty on other systems."""
    folder = machine.root / CPUFREQ
    places = [folder / f"policy{number}" for number in numbered(folder, "policy")]
    no_turbo, boost = number_of(folder.parent / "intel_pstate/no_turbo"), number_of(folder / "boost")
    return Clocks(
        policies=tuple(
            ClockPolicy(
                text_of(place / "scaling_driver"),
                text_of(place / "scaling_governor"),
                text_of(place / "energy_performance_preference"),
                *(_hz(number_of(place / f"{name}_freq")) for name in ("scaling_cur", "scaling_max", "cpuinfo_max")),
            )
            for place in places
        ),
        turbo=no_turbo == 0 if no_turbo is not None else None if boost is None else boost == 1,
        profile=text_of(machine.root / "sys/firmware/acpi/platform_profile"),
    )


def _hz(kilohertz: int | None) -> float | None:
    return kilohertz * 1e3 if kilohertz and kilohertz > 0 else None


def judge(facts: Clocks) -> Sequence[Finding]:
    """What keeps clocks down; if nothing does, the clocks themselves."""
    findings = [*_governor(facts), *_preference(facts), *_limit(facts), *_turbo(facts), *_profile(facts)]
    if findings or not facts.policies:
        return findings
    best = max((policy.max_hz or 0.0 for policy in facts.policies), default=0.0)
    now = max((policy.now_hz or 0.0 for policy in facts.policies), default=0.0)
    clocks = f"{now / 1e9:.2f} of {best / 1e9:.2f} GHz now, " if best and now else ""
    message = f"{clocks}governor {facts.policies[0].governor or 'unknown'} of {facts.policies[0].driver or 'unknown'}"
    return [Finding("clocks", "ok", message, value=round(best / 1e6) if best else None, unit="MHz" if best else None)]


def _governor(facts: Clocks) -> Iterator[Finding]:
    slow = [each for each in facts.policies if each.governor == "powersave" and each.driver not in SELF_GOVERNING]
    if slow:
        now = f" ({slow[0].now_hz / 1e6:.0f} MHz now)" if slow[0].now_hz else ""
        message = f"the governor powersave of {slow[0].driver or 'cpufreq'} keeps the lowest clock{now}"
        value = None if slow[0].now_hz is None else round(slow[0].now_hz / 1e6)
        yield Finding("governor", "slow", message, GOVERN, value, None if value is None else "MHz")


def _preference(facts: Clocks) -> Iterator[Finding]:
    preferences = {policy.preference for policy in facts.policies}
    if "power" in preferences:
        message = "the processor prefers saving power to speed (energy preference: power)"
        yield Finding("energy-preference", "slow", message, PERFORMANCE)
    elif "balance_power" in preferences:
        message = "the processor leans towards saving power (energy preference: balance_power)"
        yield Finding("energy-preference", "note", message, f"powerprofilesctl set balanced, or {PERFORMANCE}")


def _limit(facts: Clocks) -> Iterator[Finding]:
    shares = [policy.limit_hz / policy.max_hz for policy in facts.policies if policy.limit_hz and policy.max_hz]
    least = min(shares, default=1.0)
    if least < LIMITED_SHARE and facts.turbo is not False:  # without turbo the limit is lower too
        message = f"clocks are limited to {100 * least:.0f} % of the highest"
        fix = "lift it: sudo cpupower frequency-set --max <clock>; some firmware limits clocks without a mains adapter"
        yield Finding("clock-limit", "slow", message, fix, round(100 * least, 1), "%")


def _turbo(facts: Clocks) -> Iterator[Finding]:
    if facts.turbo is False:
        fix = "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo (elsewhere: echo 1 into cpufreq/boost)"
        yield Finding("turbo", "slow", "turbo clocks are switched off", fix)


def _profile(facts: Clocks) -> Iterator[Finding]:
    if facts.profile in ("low-power", "quiet"):
        message = f"the platform's power profile is {facts.profile}"
        yield Finding("power-profile", "slow", message, f"powerprofilesctl set balanced, or {PERFORMANCE}")


CHECK = Check(order=60, summary="clocks", read=read, judge=judge, unknown=Clocks())
