"""The CPU that code is made for, in LLVM's words: its name and its features.

LLVM is asked once: its answer is kept beside the kernels, by what the system reports of the CPU, since loading LLVM
takes 40 MB and some time. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name another CPU, as in Numba. Compiles nothing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import platformdirs

from edgeinfer.temporary import temporary_path

TILE_FEATURES = ("amx-tile", "amx-int8", "amx-bf16")
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
CPU_INFO = Path("/proc/cpuinfo")
TRAITS = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)
"""What Linux says of a CPU and that does not change while it runs."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """LLVM's name ("znver3"), feature string ("+avx2,-fma") and all features, those that the name implies included."""

    name: str
    flags: str
    features: frozenset[str]


def this_cpu() -> Cpu:
    """The CPU that code is made for: this one, or what the environment names."""
    return _cpu(os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES"), cache_root())


def cpu_features() -> frozenset[str]:
    """Features that code may use ("avx2", "avx512vnni", …)."""
    found = this_cpu().features
    return found if not found.issuperset(TILE_FEATURES) or may_use_tiles() else found.difference(TILE_FEATURES)


def cache_root() -> Path:
    """The folder of the folders of compiled code."""
    return Path(platformdirs.user_cache_dir("edgeinfer")) / "kernels"


@functools.cache
def may_use_tiles() -> bool:
    """Whether this process may use tile registers. Linux requires one request per process and can refuse it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


@functools.cache
def _cpu(name: str | None, flags: str | None, folder: Path) -> Cpu:
    """The CPU that the environment names, and this one where it names none."""
    traits = _traits()
    if not traits:
        return _asked()
    states = "|".join((traits, platform.machine(), version("llvmlite"), repr(name), repr(flags)))
    path = folder / f"cpu-{hashlib.sha256(states.encode()).hexdigest()[:16]}.json"
    found = _kept(path)
    if found is None:
        found = _asked()
        _keep(path, found)
    return found


def _asked() -> Cpu:
    """What LLVM says."""
    from edgeinfer.jit import machine_code

    return Cpu(machine_code.cpu_name(), machine_code.cpu_feature_flags(), machine_code.all_features())


def _traits() -> str:
    """What the system reports of its first CPU; "" if it reports nothing."""
    try:
        first = CPU_INFO.read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return ""
    return "\n".join(line for line in first.splitlines() if line.split("\t")[0].split(":")[0].strip() in TRAITS)


def _kept(path: Path) -> Cpu | None:
    """An earlier answer; None if there is none that can be read."""
    try:
        name, flags, features = json.loads(path.read_bytes())
        return Cpu(str(name), str(flags), frozenset(map(str, features)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _keep(path: Path, cpu: Cpu) -> None:
    with suppress(OSError):  # a read-only or full disk: LLVM is asked again
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = temporary_path(path)
        beside.write_text(json.dumps([cpu.name, cpu.flags, sorted(cpu.features)]))
        os.replace(beside, path)
