"""Code that was compiled beforehand: sets of object files in the package `edgeinfer_kernels`, if it is installed.

In: the hash of sources, the features of this CPU. Out: object code by name, from the sets that this CPU can run, the
fastest first, or why there is none. `scripts/make_kernel_wheel.py` makes the package. Code made from other sources is
not used; the compiler's version does not matter, since object code needs none. Where NUMBA_CPU_NAME or
NUMBA_CPU_FEATURES asks for other code, all of it is compiled. Writes nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

PACKAGE = "edgeinfer_kernels"
INDEX = "index.json"
DAMAGES = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What reading a damaged package can raise."""
State = Literal["used", "absent", "overridden", "damaged", "other sources", "other system", "other cpu"]
"""Whether a package serves, or why not: it is not installed, the environment asks for other code, …"""
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
            CodeTarget("amx", "x86_64", "amx", "x86-64-v4", (*V4, "avx512vnni", "amx-tile", "amx-int8", "amx-bf16")),
            CodeTarget("avx512fp16", "x86_64", "avx512fp16", "x86-64-v4", (*V4, "avx512vnni", "avx512fp16")),
            CodeTarget("avx512vnni", "x86_64", "avx512vnni", "x86-64-v4", (*V4, "avx512vnni")),
            CodeTarget("avxvnni", "x86_64", "avxvnni", "x86-64-v3", (*V3, "avxvnni")),
            CodeTarget("avx2", "x86_64", "avx2", "x86-64-v3", V3),
            CodeTarget("neon-i8mm", "aarch64", "neon", "generic", ("neon", "dotprod", "fullfp16", "i8mm")),
            CodeTarget("neon", "aarch64", "neon", "generic", ("neon", "dotprod", "fullfp16")),
        )
    }
)
"""By name, the fastest first."""


@dataclass(frozen=True, slots=True)
class PrebuiltCode:
    """What the installed package has for some sources and this CPU.

    `version`: the package's, if it can be read; `archives`: files of object code by target, the fastest first.
    """

    state: State
    version: str | None = None
    archives: Mapping[str, Path] = field(default_factory=dict)

    def code(self, name: str) -> bytes | None:
        """The code of a kernel or function, from the first archive that has it intact; None if none does."""
        for path in self.archives.values():
            with suppress(*DAMAGES), zipfile.ZipFile(path) as archive:
                return archive.read(f"{name}.o")  # compared with its checksum there
        return None

    def damaged_archives(self) -> list[Path]:
        """The archives of which a file cannot be read."""
        return [path for path in self.archives.values() if not _is_intact(path)]


NO_PREBUILT = PrebuiltCode("absent")


def object_format() -> str:
    """The kind of object files of this system."""
    return {"win32": "coff", "darwin": "macho"}.get(sys.platform, "elf")


def machine_name() -> str:
    """The architecture of this CPU, by the name that `CodeTarget` uses."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def prebuilt_code(sources: str, features: Callable[[], frozenset[str]]) -> PrebuiltCode:
    """What the installed package has for sources of this hash and a CPU with these features."""
    folder = _package_folder()
    if folder is None:
        return NO_PREBUILT
    if any(name in os.environ for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")):
        return PrebuiltCode("overridden")
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        version, form, files = str(index["version"]), index["format"], index["code"].get(sources)
        if files is None:
            return PrebuiltCode("other sources", version)
        if form != object_format():
            return PrebuiltCode("other system", version)
        own, there = features(), machine_name()
        fitting = (each for each in TARGETS.values() if each.machine == there and own.issuperset(each.features))
        archives = {target.name: folder / files[target.name] for target in fitting if target.name in files}
        return PrebuiltCode("used" if archives else "other cpu", version, archives)
    except DAMAGES:  # code is compiled instead
        return PrebuiltCode("damaged")


def _is_intact(path: Path) -> bool:
    with suppress(*DAMAGES), zipfile.ZipFile(path) as archive:
        return archive.testzip() is None
    return False


def _package_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    folders = None if found is None else found.submodule_search_locations
    return Path(folders[0]) if folders else None
