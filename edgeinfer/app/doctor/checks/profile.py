"""The profile of this machine: what plans are made from. Whether there is one, how old it is, how quiet it was then."""

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
"""How a probe writes when it was."""


@dataclass(frozen=True, slots=True)
class ProfileState:
    """`is_kept`: there is a file, whether it can be read or not. `age_days`: None if not known."""

    profile: Profile | None = None
    is_kept: bool = False
    age_days: float | None = None


def read(machine: ExaminedMachine) -> ProfileState:
    """The profile that was kept."""
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
    """Whether plans can be trusted."""
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
