"""Code that was compiled beforehand: sets of object files in the package `edgeinfer_kernels`, if it is installed.

In: the hash of sources and compiler, the features of this CPU. Out: object code by name, from the sets that this CPU
can run, the fastest first. `scripts/make_kernel_wheel.py` makes the package. A package made from other sources or by
another compiler is not used, and neither is any where NUMBA_CPU_NAME or NUMBA_CPU_FEATURES asks for other code.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

PACKAGE = "edgeinfer_kernels"
INDEX = "index.json"
V3 = (
    "avx",
    "avx2",
    "bmi",
    "bmi2",
    "cx16",
    "f16c",
    "fma",
    "lzcnt",
    "movbe",
    "popcnt",
    "sse3",
    "sse4.1",
    "sse4.2",
    "ssse3",
)
V4 = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


@dataclass(frozen=True, slots=True)
class CodeTarget:
    """CPUs that one set of code is for: all of `machine` ("x86_64") that have `features`.

    `isa`: the instruction set that kernels are made for; `cpu`: LLVM's name of the least such CPU.
    """

    name: str
    machine: str
    isa: str
    cpu: str
    features: tuple[str, ...]

    @property
    def flags(self) -> str:
        """The features in LLVM's form; vectors of 512 bits are not split, which LLVM would do for a general CPU."""
        flags = [f"+{feature}" for feature in self.features]
        return ",".join([*flags, "-prefer-256-bit"] if "avx512f" in self.features else flags)


TARGETS: Mapping[str, CodeTarget] = MappingProxyType(
    {
        target.name: target
        for target in (
            CodeTarget("amx", "x86_64", "amx", "x86-64-v4", (*V4, "avx512vnni", "amx-tile", "amx-int8")),
            CodeTarget("avx512vnni", "x86_64", "avx512vnni", "x86-64-v4", (*V4, "avx512vnni")),
            CodeTarget("avxvnni", "x86_64", "avxvnni", "x86-64-v3", (*V3, "avxvnni")),
            CodeTarget("avx2", "x86_64", "avx2", "x86-64-v3", V3),
            CodeTarget("neon-i8mm", "aarch64", "neon", "generic", ("neon", "dotprod", "fullfp16", "i8mm")),
            CodeTarget("neon", "aarch64", "neon", "generic", ("neon", "dotprod", "fullfp16")),
        )
    }
)
"""By name, the fastest first."""


class PrebuiltCode:
    """Object files by name, in archives of which the first that has a name counts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._archives = [zipfile.ZipFile(path) for path in paths]
        self._places = {name: archive for archive in reversed(self._archives) for name in archive.namelist()}

    def code(self, name: str) -> bytes | None:
        """The code of a kernel or function; None if there is none, or if it is damaged."""
        archive = self._places.get(f"{name}.o")
        with suppress(OSError, zipfile.BadZipFile):
            return None if archive is None else archive.read(f"{name}.o")
        return None


def object_format() -> str:
    """The kind of object files of this system."""
    return {"win32": "coff", "darwin": "macho"}.get(sys.platform, "elf")


def machine_name() -> str:
    """The architecture of this CPU, by the name that `CodeTarget` uses."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def prebuilt_code(sources: str, features: Callable[[], frozenset[str]]) -> PrebuiltCode | None:
    """What the installed package has for sources and a compiler of this hash and a CPU with these features."""
    folder = _package_folder()
    if folder is None or any(name in os.environ for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")):
        return None
    try:
        index = json.loads((folder / INDEX).read_text())
        files = index["code"][sources] if index["format"] == object_format() else {}
        own, there = features(), machine_name()
        fitting = (each for each in TARGETS.values() if each.machine == there and own.issuperset(each.features))
        paths = [folder / files[target.name] for target in fitting if target.name in files]
        return PrebuiltCode(paths) if paths else None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        zipfile.BadZipFile,
    ):  # a damaged package: code is compiled instead
        return None


def _package_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    folders = None if found is None else found.submodule_search_locations
    return Path(folders[0]) if folders else None
