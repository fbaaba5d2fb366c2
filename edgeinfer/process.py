"""Processes of edgeinfer: the command that starts one, its CPUs, and telemetry of its dependencies switched off.

A program that edgeinfer was packed into has no Python to start: it starts itself with an option that makes its start-up
hook (`edgeinfer.app.packing`) run a module instead. Telemetry is off before a package that has any is imported:
docs/PRIVACY.md lists what each needs, and tests/privacy traces system calls to check that nothing else reports. Knows
no cores, caches or quotas, and imports no dependency.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from edgeinfer.errors import BadSetting

PACKED_OPTION = "--edgeinfer-module"
TELEMETRY_OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: no events, no uploads, no identifier on disk
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray
    "DO_NOT_TRACK": "1",  # a convention that several packages follow, including huggingface_hub
}
REPORTING_MODULES = ("openvino_telemetry",)
"""Packages that only report telemetry. openvino works without its own and has no other switch."""


def is_packed() -> bool:
    """Whether this program was packed with its Python (by PyInstaller)."""
    return bool(getattr(sys, "frozen", False))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as `python -m` does, for use with `environment`.

    With -P, Python does not import files of the current folder, such as a user's types.py.
    """
    start = [sys.executable, PACKED_OPTION] if is_packed() else [sys.executable, "-P", "-m"]
    return [*start, module, *arguments]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child finds the same edgeinfer as this process."""
    here = Path(__file__).resolve().parents[1]
    if is_packed() or here.name in ("site-packages", "dist-packages"):
        return dict(inherited)  # found there anyway; in PYTHONPATH, packages there would shadow Python's own
    before = inherited.get("PYTHONPATH")
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(here), before] if before else [str(here)])}


def allowed_cpus() -> tuple[int, ...]:
    """Logical CPUs that the operating system lets this process run on."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def require_cpus(cpus: Iterable[int]) -> None:
    """Raise BadSetting, listing the usable CPUs, if `cpus` is empty or contains one this process may not use."""
    wanted, allowed = set(cpus), allowed_cpus()
    there_are = f"this process may use {', '.join(map(str, allowed))}"
    if not wanted:
        raise BadSetting(f"no core was given; {there_are}")
    if missing := sorted(wanted - set(allowed)):
        raise BadSetting(f"core {missing[0]} cannot be used here; {there_are}")


def refuse_telemetry() -> None:
    """Switch telemetry off for this process and its children. Call it before importing a package that has any.

    The settings are permanent: a program that embeds edgeinfer sends no telemetry from these packages either. Packages
    that the program has already imported are left as they are.
    """
    os.environ.update(TELEMETRY_OFF)
    modules = cast("dict[str, object]", sys.modules)
    for name in REPORTING_MODULES:
        modules.setdefault(name, None)  # None: importing it raises ImportError (Python's reference, 5.3.1)
