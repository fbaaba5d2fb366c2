"""The one place that calls Numba's compiler: flags, the kernel signature and the cache of compiled code.

In: kernels as plain functions with the record type of their arguments. Out: addresses to call. Compiled code is kept
in a folder named by a hash of all kernel sources, the compiler versions and the CPU, because Numba's own cache key
does not see a change in another file. Knows nothing of what a kernel computes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import platformdirs
from numba import cfunc, njit, types
from numba.core import config
from numba.core.codegen import get_host_cpu_features

from edgeinfer.backends.cpu.features import features_of

_CACHE_FOLDER_LOCK = threading.Lock()

inline = njit(forceinline=True, error_model="numpy")
"""For functions that kernels call: compiled into the kernel, never on their own."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of (pointer to one argument record, worker, address of the crew) and the record's dtype."""

    name: str
    function: Callable[..., None]
    arguments: np.dtype[np.void]


def cpu_features() -> frozenset[str]:
    """Features of the CPU that Numba compiles for ("avx2", "avx512vnni", …), stated or implied by its name."""
    stated = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    cpu = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    return features_of(llvmlite.binding.get_process_triple(), cpu, stated)


def compiles_for_another_cpu() -> bool:
    """Whether NUMBA_CPU_NAME asks for code for another CPU than this one: what it can do is then not known here."""
    return config.CPU_NAME is not None


def cache_folder() -> Path:
    """Where compiled kernels of exactly this source, compiler and CPU are kept."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in [here.parent / "base.py", *sorted(here.rglob("*.py"))]:  # kernels hold base's constants
        digest.update(path.read_bytes())
    cpu = config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    versions = (numba.__version__, llvmlite.__version__, cpu, ",".join(sorted(cpu_features())))
    digest.update("|".join(versions).encode())
    return Path(platformdirs.user_cache_dir("edgeinfer")) / "kernels" / digest.hexdigest()[:16]


@contextmanager
def _numba_cache_in(folder: Path) -> Iterator[None]:
    """Numba reads its cache folder from a global at decoration; set it for that moment only."""
    with _CACHE_FOLDER_LOCK:
        before = config.CACHE_DIR
        config.CACHE_DIR = str(folder)
        try:
            yield
        finally:
            config.CACHE_DIR = before


class KernelLibrary:
    """Compiled kernels by name; one per device. `n_compiled` counts those that were not in the cache.

    Each kernel has a cache folder of its own: Numba numbers the entries of a folder and does not lock it, so that two
    processes which compile different kernels from one function could take each other's code.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder()
        self._compiled: dict[str, Any] = {}
        self.n_compiled = 0

    def address(self, kernel: Kernel) -> int:
        """The address of a kernel: from memory, from the cache folder, or compiled now."""
        if kernel.name not in self._compiled:
            record = numba.from_dtype(kernel.arguments)
            signature = types.void(types.CPointer(record), types.intp, types.intp)
            compiled = self._compile(
                kernel.name,
                lambda cache: cfunc(signature, nopython=True, cache=cache, error_model="numpy")(kernel.function),
            )
            self.n_compiled += 0 if compiled.cache_hits else 1
            self._compiled[kernel.name] = compiled
        address: int = self._compiled[kernel.name].address
        return address

    def function(self, signature: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function callable from Python that holds no interpreter lock while it runs."""
        key = f"{function.__module__}.{function.__qualname__}"
        if key not in self._compiled:
            compiled = self._compile(
                function.__name__,
                lambda cache: njit(signature, nogil=True, cache=cache, error_model="numpy")(function),
            )
            self.n_compiled += sum(compiled.stats.cache_misses.values())
            self._compiled[key] = compiled
        found: Callable[..., Any] = self._compiled[key]
        return found

    def _compile(self, name: str, decorate: Callable[[bool], Any]) -> Any:
        """`decorate(cache)` with the cache in a folder of its own, or without a cache where none can be written."""
        folder = self._folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                with _numba_cache_in(folder):
                    return decorate(True)
        except OSError:  # a read-only or full disk
            pass
        return decorate(False)
