"""Settings that cost speed: where they come from, and how to undo them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.errors import BadSetting
from edgeinfer.settings import ENVIRONMENT_PREFIX, Settings, load_settings

SLOW_DEVICES = ("reference", "null")


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """The settings, or why they cannot be read; neither if they were not read. `workers`: CPUs that could compute."""

    settings: Settings | None = None
    reason: str = ""
    workers: tuple[int, ...] = ()


def read(machine: ExaminedMachine) -> ChosenSettings:
    """Read the settings as every command does."""
    workers = machine.topology.workers()
    try:
        return ChosenSettings(load_settings(environ=machine.environ), "", workers)
    except BadSetting as reason:
        return ChosenSettings(None, str(reason), workers)


def judge(facts: ChosenSettings) -> Sequence[Finding]:
    """Which settings make answers slower."""
    if facts.reason:
        fix = "correct it there; edgeinfer config path names the file of settings"
        return [Finding("settings", "wrong", facts.reason, fix)]
    if facts.settings is None:
        return []
    found = [*_cores(facts.settings, facts.workers), *_features(facts.settings)]
    return found or [Finding("settings", "ok", "none of them costs speed")]


def _cores(settings: Settings, workers: Sequence[int]) -> Iterator[Finding]:
    threads, cores = settings.load.threads, settings.load.cores
    for name, n_used in (("threads", threads), ("cores", None if cores is None else len(cores))):
        if n_used is not None and n_used < len(workers):
            message = f"{name} lets {n_used} of {len(workers)} cores compute ({settings.origins[name]})"
            yield Finding(f"setting-{name}", "slow", message, _reset(settings, name), n_used, "cores")
        elif n_used is not None and name == "threads" and n_used > len(workers):
            message = f"threads asks for {n_used} workers, {len(workers)} cores can compute ({settings.origins[name]})"
            yield Finding(f"setting-{name}", "slow", message, _reset(settings, name), n_used, "workers")


def _features(settings: Settings) -> Iterator[Finding]:
    load, first = settings.load, settings.load.device_names[0]
    if first in SLOW_DEVICES:
        message = f"device is {first}, which is not made for speed ({settings.origins['device']})"
        yield Finding("setting-device", "slow", message, _reset(settings, "device"))
    if load.spec == "off":
        message = f"drafting is off, which costs speed and changes no answer ({settings.origins['spec']})"
        yield Finding("setting-spec", "slow", message, _reset(settings, "spec"))
    if load.mode in ("quiet", "battery"):
        message = f"mode is {load.mode}: about half the cores compute ({settings.origins['mode']})"
        yield Finding("setting-mode", "note", message, _reset(settings, "mode"))
    if not load.history:
        message = f"draft history is off, so drafting starts from nothing each time ({settings.origins['history']})"
        yield Finding("setting-history", "note", message, _reset(settings, "history"))


def _reset(settings: Settings, name: str) -> str:
    """How to reset a setting to its default."""
    origin = settings.origins[name]
    if origin.startswith(ENVIRONMENT_PREFIX):
        return f"unset {origin}"
    return f"take {name} out of {origin}"


CHECK = Check(order=35, summary="settings that cost speed", read=read, judge=judge, unknown=ChosenSettings())
