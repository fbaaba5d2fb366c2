"""How much of a file is in the page cache, judged by samples, without reading any of it from the disk.

In: paths. Out: a share, or None where the system does not tell. Knows nothing of what files hold.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SAMPLES = 32


def cached_share(paths: Sequence[Path]) -> float | None:
    """The share of some files that is in memory, 0 to 1; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    found: list[bool] = []
    try:
        for path in paths:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
                start, n_pages = np.frombuffer(mapping, np.uint8).ctypes.data, -(-len(mapping) // mmap.PAGESIZE)
                for number in range(SAMPLES):
                    answer = ctypes.create_string_buffer(1)
                    place = start + n_pages * number // SAMPLES * mmap.PAGESIZE
                    if library.mincore(place, 1, answer):
                        return None
                    found.append(bool(answer.raw[0] & 1))
    except (OSError, ValueError):  # a file that is not there, or empty
        return None
    return sum(found) / len(found) if found else None
