"""Versions of Python and of the packages that compute: whether they work together, and on the processor."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine

PACKAGES = ("numba", "llvmlite", "numpy")


@dataclass(frozen=True, slots=True)
class Versions:
    """`packages`: versions, None of what is not installed. `problem`: why Numba cannot be imported, "" if it can.

    `translated`: why this Python's code is translated while it runs, "" if it is not.
    """

    python: str = ""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    problem: str = ""
    translated: str = ""


def read(machine: ExaminedMachine) -> Versions:
    """What the installer has on record, and what Numba says, which checks the others when it is imported."""
    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    try:
        import numba  # noqa: F401
    except ImportError as reason:
        problem = str(reason)
    else:
        problem = ""
    return Versions(platform.python_version(), packages, problem, _translation(machine.environ))


def _translation(environ: Mapping[str, str]) -> str:
    if sys.platform == "darwin" and platform.machine() == "x86_64" and _is_under_rosetta():
        return "Rosetta translates it: this is a Python for Intel's Macs on one with Apple's chip"
    if sys.platform == "win32" and "ARM" in environ.get("PROCESSOR_IDENTIFIER", "") and "ARM" not in platform.machine():
        return "Windows translates it: this is a Python for x86 on an ARM machine"
    return ""


def _is_under_rosetta() -> bool:
    """Source: Apple, "About the Rosetta translation environment"."""
    import ctypes

    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError):
        return False
    failed = call(b"sysctl.proc_translated", ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and value.value == 1


def judge(facts: Versions) -> Sequence[Finding]:
    """Whether everything is there, and fits."""
    if not facts.packages:
        return []
    findings = []
    missing = [name for name, version in facts.packages.items() if version is None]
    problems = [f"{', '.join(missing)} not installed"] if missing else []
    problems += [facts.problem] if facts.problem else []
    listed = ", ".join(f"{name} {version}" for name, version in facts.packages.items() if version is not None)
    message = f"Python {facts.python}, {listed}"
    if problems:
        fix = "pip install --upgrade --force-reinstall edgeinfer"
        findings.append(Finding("versions", "wrong", f"{'; '.join(problems)} ({message})", fix))
    else:
        findings.append(Finding("versions", "ok", message))
    if facts.translated:
        message = f"Python's code is not the machine's own: {facts.translated}"
        findings.append(Finding("translation", "slow", message, "install a Python built for this processor (arm64)"))
    return findings


CHECK = Check(order=110, summary="versions of packages", read=read, judge=judge, unknown=Versions())
