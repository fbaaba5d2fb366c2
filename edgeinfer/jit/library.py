"""Compiled kernels: cached on disk as object code, compiled by Numba if they are not cached.

In: kernels and functions of the catalogue. Out: addresses and callables. The cache folder is named by a hash of all
sources, the compiler versions and the CPU; each file holds its checksum. What is not there may have been compiled
beforehand (`prebuilt`). Knows nothing of what a kernel computes.
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

from edgeinfer.file_lock import FileLock
from edgeinfer.jit.code import CodeSource, CompiledFunction, Kernel, entry
from edgeinfer.jit.code_memory import CodeMemory
from edgeinfer.jit.cpu import cache_root, cpu_features, this_cpu
from edgeinfer.jit.prebuilt import NO_PREBUILT, PrebuiltCode, prebuilt_code
from edgeinfer.jit.processes import compile_apart
from edgeinfer.private_files import read_own, readable_folder, readably
from edgeinfer.steps import COMPILING, Progress
from edgeinfer.temporary import temporary_folder

CHECKSUM_BYTES = hashlib.sha256().digest_size


def sources_hash(*sources: Path) -> str:
    """A hash of exactly these sources: files, and folders whose Python files count; this package's own always do."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for source in (here, here / "targets", *sources):
        for path in sorted(source.glob("*.py")) if source.is_dir() else [source]:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_folder(*sources: Path) -> Path:
    """The cache folder for exactly these sources, this compiler and this CPU."""
    return _folder_of(sources_hash(*sources))


def _folder_of(sources: str) -> Path:
    """The cache folder for sources of this hash, this compiler and this CPU."""
    cpu = this_cpu()
    states = (sources, version("numba"), version("llvmlite"), cpu.name, cpu.flags)
    name = hashlib.sha256("|".join(states).encode()).hexdigest()[:16]
    return cache_root() / name


def open_library(*sources: Path) -> KernelLibrary:
    """The library of code from these sources: its cache folder, and what was compiled beforehand."""
    of_sources = sources_hash(*sources)
    return KernelLibrary(_folder_of(of_sources), prebuilt_code(of_sources, cpu_features))


class KernelLibrary:
    """Machine code by name; one per device. `n_compiled` counts what was not in the cache folder."""

    def __init__(self, folder: Path, prebuilt: PrebuiltCode = NO_PREBUILT) -> None:
        self._folder, self._prebuilt = folder, prebuilt
        self._memory = CodeMemory()
        self._addresses: dict[str, int] = {}
        self._codes: dict[str, bytes] = {}  # prepared, but not requested yet
        self._lock = threading.Lock()
        self.n_compiled = 0

    def prepare(self, wanted: Sequence[Kernel | CompiledFunction], n_processes: int, progress: Progress) -> None:
        """Make code available: missing code is compiled by `n_processes` processes at a time.

        Waits for another program that is compiling. If Python does not know its own executable, compiling is left to
        `address`.
        """
        n_missing = len(self._missing(wanted))
        if not n_missing or not sys.executable:
            return

        def waiting(pid: int | None) -> None:
            progress(COMPILING, n_missing - len(self._missing(wanted)), n_missing)

        progress(COMPILING, 0, n_missing)
        with ExitStack() as locked:
            with suppress(OSError):  # a read-only or full disk: each process compiles for itself
                readable_folder(self._folder)
                locked.enter_context(FileLock(self._folder / "compiling.lock", "kernels", "compiling", waiting))
            missing = self._missing(wanted)
            for done, (name, code) in enumerate(compile_apart(missing, n_processes), n_missing - len(missing) + 1):
                self._keep(f"{name}.o", code)
                self._codes[name] = code
                self.n_compiled += 1
                progress(COMPILING, done, n_missing)

    def _missing(self, wanted: Sequence[Kernel | CompiledFunction]) -> list[Kernel | CompiledFunction]:
        return [each for each in wanted if not self._is_at_hand(each.name)]

    def has(self, wanted: Sequence[Kernel | CompiledFunction]) -> bool:
        """Whether all of these can be loaded without compiling."""
        return not self._missing(wanted)

    def address(self, wanted: Kernel | CompiledFunction) -> int:
        """The address of a kernel's or function's code, from memory, from the folder, or compiled now."""
        with self._lock:
            if wanted.name not in self._addresses:
                code = self._codes.pop(wanted.name, None) or self._compiled_earlier(wanted.name)
                if code is None:
                    from edgeinfer.jit.machine_code import object_code

                    code = object_code(wanted)
                    self.n_compiled += 1
                    if isinstance(wanted.load, CodeSource):
                        self._keep(f"{wanted.name}.o", code)
                self._addresses[wanted.name] = self._memory.add(code, entry(wanted.name))
            return self._addresses[wanted.name]

    def function(self, function: CompiledFunction) -> Callable[..., Any]:
        """A function callable from Python that releases the interpreter lock while it runs."""
        result = ctypes.c_int64 if function.returns else None
        kind = ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * function.n_arguments)
        return kind(self.address(function))

    def note(self, name: str) -> str | None:
        """The text that `keep_note` saved, in this process or an earlier one."""
        content = self._kept(f"{name}.note")
        return None if content is None else content.decode()

    def keep_note(self, name: str, text: str) -> None:
        """Save a measurement of this CPU beside its code."""
        self._keep(f"{name}.note", text.encode())

    def _is_at_hand(self, name: str) -> bool:
        """Whether a name needs no compiling; its file in the folder is read once."""
        if name not in self._addresses and name not in self._codes:
            code = self._compiled_earlier(name)
            if code is None:
                return False
            self._codes[name] = code
        return True

    def _compiled_earlier(self, name: str) -> bytes | None:
        """Code that needs no compiling: compiled here, for exactly this CPU, or beforehand."""
        own = self._kept(f"{name}.o")
        return own if own is not None else self._prebuilt.code(name)

    def _kept(self, name: str) -> bytes | None:
        """The content of a file of the folder; None if it is missing or damaged, or others may have written it."""
        try:
            content = read_own(self._folder / name)  # which runs here
        except OSError:
            return None
        checksum, code = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        return code if hashlib.sha256(code).digest() == checksum else None

    def _keep(self, name: str, code: bytes) -> None:
        """Write a file of the folder if possible; other processes see all of it or nothing."""
        try:
            readable_folder(self._folder)
            with temporary_folder("", self._folder) as beside:
                whole = Path(beside) / "code"
                with open(whole, "wb", opener=readably) as file:
                    file.write(hashlib.sha256(code).digest() + code)
                os.replace(whole, self._folder / name)
        except OSError:  # a read-only or full disk
            pass
