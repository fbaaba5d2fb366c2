"""Compiled kernels: kept on disk as object code, loaded by LLVM alone, compiled by Numba where there are none yet.

In: kernels and functions of the catalogue. Out: addresses and callables. Code is kept in a folder named by a hash of
all sources, the compiler versions and the CPU, each piece with its checksum. Knows nothing of what a kernel computes.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import platformdirs

from edgeinfer.backends.base import Progress
from edgeinfer.backends.cpu.catalogue import Function, Kernel, Source
from edgeinfer.backends.cpu.compilation import compile_apart
from edgeinfer.backends.cpu.features import TILE_FEATURES, features_of, may_use_tiles
from edgeinfer.models.download.lock import PullLock
from edgeinfer.steps import COMPILING
from edgeinfer.temporary import temporary_folder

CHECKSUM_BYTES = hashlib.sha256().digest_size


def cpu_name() -> str:
    """The CPU that code is made for, as LLVM calls it: this one, or NUMBA_CPU_NAME."""
    return os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()


def cpu_feature_flags() -> str:
    """Features of that CPU, as LLVM reads them; NUMBA_CPU_FEATURES takes their place, as it does for Numba."""
    stated = os.environ.get("NUMBA_CPU_FEATURES")
    return llvm.get_host_cpu_features().flatten() if stated is None else stated


def cpu_features() -> frozenset[str]:
    """Features that code is made for ("avx2", "avx512vnni", …), stated or implied by the CPU's name."""
    found = features_of(llvm.get_process_triple(), cpu_name(), cpu_feature_flags())
    return found if not found.issuperset(TILE_FEATURES) or may_use_tiles() else found.difference(TILE_FEATURES)


def cache_folder(*more: str) -> Path:
    """Where compiled code of exactly this source, compiler and CPU is kept; `more`: further folders of sources."""
    digest = hashlib.sha256()
    here = os.path.dirname(__file__)
    sources = [os.path.join(here, "..", "base.py")]  # kernels hold its constants
    for folder in (here, os.path.join(here, "kernels"), os.path.join(here, "targets"), *more):
        sources += sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(".py"))
    for path in sources:
        with open(path, "rb") as file:
            digest.update(file.read())
    versions = (version("numba"), version("llvmlite"), cpu_name(), cpu_feature_flags())
    digest.update("|".join(versions).encode())
    return Path(platformdirs.user_cache_dir("edgeinfer")) / "kernels" / digest.hexdigest()[:16]


def target_machine() -> llvm.TargetMachine:
    """How LLVM makes code for this process: as Numba asks for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=cpu_name(), features=cpu_feature_flags(), opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


class KernelLibrary:
    """Machine code by name; one per device. `n_compiled` counts what was not in the folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self._addresses: dict[str, int] = {}
        self._codes: dict[str, bytes] = {}  # prepared, and not asked for yet
        self._lock = threading.Lock()
        self.n_compiled = 0

    def prepare(self, wanted: Sequence[Kernel | Function], n_processes: int, progress: Progress) -> None:
        """Have many at hand: what is missing is compiled by as many processes at a time.

        What another program is compiling is waited for. Where nothing tells how to start processes compiling is left
        to `address`.
        """
        n_missing = len(self._missing(wanted))
        if not n_missing or not sys.executable:
            return

        def waiting(pid: int | None) -> None:
            progress(COMPILING, n_missing - len(self._missing(wanted)), n_missing)

        progress(COMPILING, 0, n_missing)
        with ExitStack() as locked:
            with suppress(OSError):  # a read-only or full disk: everybody compiles what they need
                self._folder.mkdir(parents=True, exist_ok=True)
                locked.enter_context(PullLock(self._folder / "compiling.lock", "kernels", "compiling", waiting))
            missing = self._missing(wanted)
            for done, (name, code) in enumerate(compile_apart(missing, n_processes), n_missing - len(missing) + 1):
                self._keep(f"{name}.o", code)
                self._codes[name] = code
                self.n_compiled += 1
                progress(COMPILING, done, n_missing)

    def _missing(self, wanted: Sequence[Kernel | Function]) -> list[Kernel | Function]:
        return [each for each in wanted if not self._is_at_hand(each.name)]

    def has(self, wanted: Sequence[Kernel | Function]) -> bool:
        """Whether nothing need be compiled for any of these."""
        return not self._missing(wanted)

    def address(self, wanted: Kernel | Function) -> int:
        """The address of a kernel's or function's code: from memory, from the folder, or compiled now."""
        with self._lock:
            if wanted.name not in self._addresses:
                code = self._codes.pop(wanted.name, None) or self._kept(f"{wanted.name}.o")
                if code is None:
                    code = object_code(wanted)
                    self.n_compiled += 1
                    if isinstance(wanted.load, Source):
                        self._keep(f"{wanted.name}.o", code)
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
                self._engine.finalize_object()
                self._addresses[wanted.name] = self._engine.get_function_address(_entry(wanted.name))
            return self._addresses[wanted.name]

    def function(self, function: Function) -> Callable[..., Any]:
        """A function callable from Python that holds no interpreter lock while it runs."""
        result = ctypes.c_int64 if function.returns else None
        kind = ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * function.n_arguments)
        return kind(self.address(function))

    def note(self, name: str) -> str | None:
        """What `keep_note` wrote, in this process or before."""
        content = self._kept(f"{name}.note")
        return None if content is None else content.decode()

    def keep_note(self, name: str, text: str) -> None:
        """Keep something that was measured of this CPU beside the code for it."""
        self._keep(f"{name}.note", text.encode())

    def _is_at_hand(self, name: str) -> bool:
        """Whether nothing need be compiled for a name; what is in the folder is read once."""
        if name not in self._addresses and name not in self._codes:
            code = self._kept(f"{name}.o")
            if code is None:
                return False
            self._codes[name] = code
        return True

    def _kept(self, name: str) -> bytes | None:
        """A file of the folder; None where there is none, or not what was written."""
        try:
            content = (self._folder / name).read_bytes()
        except OSError:
            return None
        checksum, code = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        return code if hashlib.sha256(code).digest() == checksum else None

    def _keep(self, name: str, code: bytes) -> None:
        """Write a file of the folder, if it can be written; other processes see all of it or nothing."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with temporary_folder("", self._folder) as beside:
                whole = Path(beside) / "code"
                whole.write_bytes(hashlib.sha256(code).digest() + code)
                os.replace(whole, self._folder / name)
        except OSError:  # a read-only or full disk
            pass


def _entry(name: str) -> str:
    """The symbol of a kernel's or function's code."""
    return f"edgeinfer.{name}"


def object_code(wanted: Kernel | Function) -> bytes:
    """Compile a kernel or function, in this process."""
    from edgeinfer.backends.cpu import jit

    machine = target_machine()
    module = jit.compiled(wanted.load(), wanted.n_arguments, wanted.returns, _entry(wanted.name), machine)
    code: bytes = machine.emit_object(module)
    return code
