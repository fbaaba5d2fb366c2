"""Calling one kernel directly, its buffers given as arrays: what a tape does, without lanes or threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import WorkSplit
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records, rounded
from edgeinfer.jit import targets
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address, aligned
from edgeinfer.settings import KVKind

Array = NDArray[np.generic]

USABLE = tuple(name for name, needs in targets.NEEDS.items() if cpu_features().issuperset(needs))
"""Instruction sets that this CPU has."""
_SLOWER = {"avx512vnni"} if "avx512fp16" in USABLE else set[str]()
DISTINCT = tuple(name for name in USABLE if name not in _SLOWER)
"""Those that make other code than the ones before them: AVX-512 once, gathering, if this CPU does."""
RUNNABLE = tuple(name for name in DISTINCT if name not in catalogue.TILED)
"""Those with kernels of every kind."""
SINGLE_KINDS: tuple[KVKind, ...] = ("f16", "q8", "q4")
"""Kinds of pages, each form of keys and of values once: what an instruction set has to do with depends on no pair."""

UNTOUCHED = np.float32(-12345.5)
"""Fills memory that a kernel must not write."""


def call(
    library: KernelLibrary,
    kernel: Kernel,
    workers: int = 1,
    cuts: Sequence[int] | None = None,
    **fields: Array | float,
) -> None:
    """Run a kernel as each worker of a worker pool, one after the other; arrays are given by their addresses."""
    record = np.zeros(1, kernel.arguments)
    assert set(fields) <= set(record.dtype.names or ())
    for name, value in fields.items():
        record[name] = address(value) if isinstance(value, np.ndarray) else value
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_ssize_t)(library.address(kernel))
    shares = records.work_split_record(WorkSplit.even(workers).cuts if cuts is None else cuts)
    for worker in range(workers):
        function(address(record), worker, address(shares))


def count_of(n: int) -> NDArray[np.int64]:
    """A number that kernels read by address."""
    return np.array([n], np.int64)


def buffer(values: NDArray[np.float32], width: int | None = None) -> NDArray[np.float32]:
    """Aligned rows, zero-padded to `width` columns (default: the next multiple of 32)."""
    n_rows, columns = values.shape
    padded: NDArray[np.float32] = aligned((n_rows, width or -(-columns // 32) * 32), np.float32)
    padded[:, :columns] = values
    return padded


def quantised(
    library: KernelLibrary, values: NDArray[np.float32], workers: int = 1, tiled: int = 0
) -> NDArray[np.uint8]:
    """The int8 records of rows whose width is a multiple of 32; blocks are padded to pairs."""
    n_rows, columns = values.shape
    n_blocks = columns // 32
    n_padded = n_blocks + n_blocks % 2
    source = buffer(values)
    records: NDArray[np.uint8] = aligned((n_rows * n_padded * rounded.RECORD_BYTES,), np.uint8)
    records[:] = 0xAB
    call(
        library,
        catalogue.ROUND_ROWS,
        workers,
        source=source,
        source_stride=source.strides[0],
        n_blocks=n_blocks,
        n_padded=n_padded,
        out=records,
        count=count_of(n_rows),
        tiled=tiled,
    )
    return records


def same_bits(first: Array, second: Array) -> bool:
    """Equality of every bit."""
    return first.shape == second.shape and first.tobytes() == second.tobytes()
