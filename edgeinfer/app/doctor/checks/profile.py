"""The profile of this machine, which plans are based on: whether it exists, its age, how idle the machine was."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.scheduling.machine.profile import Profile

QUIET_SHARE = 0.9
OLD_DAYS = 365.0
MEASURED = "%Y-%m-%d %H:%M UTC"
"""The format in which a probe writes its time."""


@dataclass(frozen=True, slots=True)
class ProfileState:
    """`is_kept`: a profile file exists, readable or not. `age_days`: None if unknown."""

    profile: Profile | None = None
    is_kept: bool = False
    age_days: float | None = None


def read(machine: ExaminedMachine) -> ProfileState:
    """Read the stored profile."""
    profile, path = machine.profile, machine.profile_path
    age_days = None
    if profile is not None:
        try:
            measured = datetime.datetime.strptime(profile.measured, MEASURED).replace(tzinfo=datetime.UTC)
            age_days = (machine.now - measured) / datetime.timedelta(days=1)
        except (ValueError, TypeError):  # written by hand
            age_days = None
    return ProfileState(profile, path is not None and path.is_file(), age_days)


def judge(facts: ProfileState) -> Sequence[Finding]:
    """Whether plans based on the profile can be trusted."""
    profile = facts.profile
    if profile is None:
        message = "this machine was not measured: plans cannot predict speeds, and begin with a short look"
        if facts.is_kept:
            message = "the profile of this machine cannot be read"
        return [Finding("profile", "note", message, "edgeinfer probe (some 16 seconds)")]
    measured = f"measured {profile.measured}" if profile.measured else "measured"
    value, unit = (None, None) if facts.age_days is None else (round(facts.age_days, 1), "days")
    if profile.idle_share is not None:
        measured += f", {100 * profile.idle_share:.0f} % idle then"
    if profile.idle_share is not None and profile.idle_share < QUIET_SHARE:
        fix = "close what else runs, then edgeinfer probe"
        return [Finding("profile", "note", f"{measured}: rates may be too low", fix, value, unit)]
    if profile.short:
        message = f"{measured}, the quick part alone"
        return [Finding("profile", "note", message, "edgeinfer probe (some 16 seconds)", value, unit)]
    if facts.age_days is not None and facts.age_days > OLD_DAYS:
        message = f"{measured}: kernels and firmware may have changed since"
        return [Finding("profile", "note", message, "edgeinfer probe (some 16 seconds)", value, unit)]
    return [Finding("profile", "ok", measured, None, value, unit)]


CHECK = Check(order=100, summary="the machine's profile", read=read, judge=judge, unknown=ProfileState())
