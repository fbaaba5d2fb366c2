"""Versions of Python and of the packages that compute: whether they fit each other and the processor."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine

PACKAGES = ("numba", "llvmlite", "numpy")
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)\s*\(?([^;)]*)\)?\s*(;.*)?")
_CLAUSE = re.compile(r"(<=|>=|<|>)\s*(\d+(?:\.\d+)*)([a-z.]\S*)?")
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True)
class Versions:
    """`packages`: versions, None if not installed. `wanted`: requirements of each package.

    `translated`: how this Python's machine code is emulated for another architecture, "" if it is native.
    """

    python: str = ""
    packages: Mapping[str, str | None] = field(default_factory=dict)
    wanted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    translated: str = ""


def read(machine: ExaminedMachine) -> Versions:
    """Read the installer's records; imports none of the packages."""
    packages: dict[str, str | None] = {}
    wanted: dict[str, tuple[str, ...]] = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
            wanted[name] = tuple(importlib.metadata.requires(name) or ())
        except importlib.metadata.PackageNotFoundError:
            packages[name] = None
    return Versions(platform.python_version(), packages, wanted, _translation(machine.environ))


def _translation(environ: Mapping[str, str]) -> str:
    if sys.platform == "darwin" and platform.machine() == "x86_64" and _is_under_rosetta():
        return "Rosetta translates it: this is a Python for Intel's Macs on one with Apple's chip"
    if sys.platform == "win32" and "ARM" in environ.get("PROCESSOR_IDENTIFIER", "") and "ARM" not in platform.machine():
        return "Windows translates it: this is a Python for x86 on an ARM machine"
    return ""


def _is_under_rosetta() -> bool:
    """Whether Rosetta runs this process. Source: Apple, "About the Rosetta translation environment"."""
    import ctypes

    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    try:
        call = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError):
        return False
    failed = call(b"sysctl.proc_translated", ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and value.value == 1


def judge(facts: Versions) -> Sequence[Finding]:
    """Whether all packages are installed and fit each other."""
    if not facts.packages:
        return []
    findings = []
    missing = [name for name, version in facts.packages.items() if version is None]
    problems = [f"{', '.join(missing)} not installed"] if missing else []
    problems += list(_misfits(facts))
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


def _misfits(facts: Versions) -> Iterator[str]:
    """Requirements of a package that the installed versions do not meet."""
    for name, requirements in facts.wanted.items():
        for requirement in requirements:
            match = _REQUIREMENT.fullmatch(requirement.strip())
            if match is None or match[3]:  # conditional: for other systems, or an extra
                continue
            version = facts.packages.get(match[1])
            if version is not None and not satisfies(version, match[2]):
                yield f"{name} {facts.packages[name]} needs {match[1]} {match[2].strip()}, {version} is installed"


def satisfies(version: str, clauses: str) -> bool:
    """Whether a version meets limits such as "<0.48,>=0.47.0dev0". Limits in other forms are accepted."""
    release = _release(version)
    for clause in clauses.split(","):
        match = _CLAUSE.fullmatch(clause.strip())
        if match is None or not release:
            continue
        limit = _release(match[2])
        width = max(len(limit), len(release))
        ours, theirs = (each + (0,) * (width - len(each)) for each in (release, limit))
        if not {"<": ours < theirs, "<=": ours <= theirs, ">": ours > theirs, ">=": ours >= theirs}[match[1]]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


CHECK = Check(order=110, summary="versions of packages", read=read, judge=judge, unknown=Versions())
