"""Fills a model's packed weights from its bundle file instead of packing them again.

In: an open bundle file, packed weights without the wanted matrices. Out: the same panels that packing makes, in the
same kind of memory: each worker first touches the memory it will read, then all workers read bundles, which are
checked before they are used.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, WorkSplit
from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.file import BundleFile, at_a_time
from edgeinfer.backends.cpu.memory.packing import HeadLayout, PackedMatrix, PackedWeights, room
from edgeinfer.backends.cpu.workers.worker_pool import pin
from edgeinfer.errors import BadBundle, DeviceFailed
from edgeinfer.graph.operands import Weight
from edgeinfer.jit.memory import aligned
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle, Key
from edgeinfer.offload.bundle_file import ByteSource
from edgeinfer.offload.weights import Prepacked
from edgeinfer.steps import Progress

SAMPLES = 32
"""Sampled pages of a file, which show how much of it is in the page cache."""

Panels = dict[Key, NDArray[np.uint8]]
"""uint8[n_panels, panel_bytes] of each wanted matrix."""


def start_from(
    packed: PackedWeights,
    place: Prepacked,
    contents: Contents,
    wanted: Sequence[tuple[Weight, HeadLayout | None]],
    n_workers: int,
    progress: Progress,
    cores: Sequence[int] = (),
) -> None:
    """`fill` from the bundle file if it exists, has these contents and is faster; otherwise packing does the work.

    Files with records are not used: they hold no panels of these layers.
    """
    if contents.records is not None or not is_faster(place.path, packed.file):
        return
    try:
        bundles = BundleFile.open(place.path, contents, place.fingerprint)
    except (BadBundle, DeviceFailed):  # also if the file holds the whole model and only a part of it runs here
        return
    with bundles:
        try:
            fill(packed, bundles, wanted, n_workers, progress, cores)
        except (BadBundle, DeviceFailed) as reason:
            progress(f"packing weights ({reason})", 0, 1)


def fill(
    packed: PackedWeights,
    bundles: BundleFile,
    wanted: Sequence[tuple[Weight, HeadLayout | None]],
    n_workers: int,
    progress: Progress,
    cores: Sequence[int] = (),
) -> None:
    """Give `packed` the wanted matrices that the file holds; `PackedWeights.pack` makes the others.

    Raises DeviceFailed or BadBundle, and then leaves `packed` unchanged.
    """
    held = bundles.contents.matrices
    keys = list(dict.fromkeys((weight, heads.padded if heads else 0) for weight, heads in wanted))
    keys = [key for key in keys if key in held and key not in packed]
    memory = room([(held[key].n_panels, held[key].panel_bytes) for key in keys])
    panels = dict(zip(keys, memory, strict=True))
    threads = [ThreadPoolExecutor(1, initializer=pin, initargs=(cores[i : i + 1],)) for i in range(n_workers)]
    source = bundles.source(direct=False)
    try:
        cuts = itertools.pairwise(WorkSplit.even(n_workers).cuts)
        for touched in [thread.submit(_touch, panels, *cut) for thread, cut in zip(threads, cuts, strict=True)]:
            touched.result()
        _read(bundles, source, panels, threads, progress)
    finally:
        for thread in threads:
            thread.shutdown(cancel_futures=True)
        source.close()
    packed.take({key: PackedMatrix(packed.panel(key[0]), data) for key, data in panels.items()})


def is_faster(path: Path, file: GGUFFile) -> bool:
    """Whether filling from the bundle file at `path` beats packing: unless more of the model's own file is in memory.

    If both files are in memory, filling is less work; if both are on the disk, it takes as long, but the next start is
    faster.
    """
    ours = cached_share([path])
    theirs = cached_share(file.paths)
    return ours is None or theirs is None or ours >= theirs


def _touch(panels: Panels, start: int, stop: int) -> None:
    """Touch the memory that a worker reads when all workers take equal parts of a product, so that it is allocated."""
    for data in panels.values():
        n_units = len(data) // 2
        first, end = ((n_units * cut + WHOLE // 2) // WHOLE for cut in (start, stop))
        data[2 * first : 2 * end].reshape(-1)[::PAGE_BYTES] = 0


def _read(
    bundles: BundleFile, source: ByteSource, panels: Panels, threads: Sequence[ThreadPoolExecutor], progress: Progress
) -> None:
    """Read the bundles that hold wanted matrices, on as many threads as bundles may be in transit."""
    chosen = [bundle for bundle in bundles.contents.bundles if any(part.key in panels for part in bundle.parts)]
    n_bytes = max((bundle.padded_bytes for bundle in chosen), default=0)
    readers = [(thread, aligned((n_bytes,), np.uint8)) for thread in threads[: at_a_time(chosen, len(threads))]]
    turns = zip(chosen, itertools.cycle(readers), strict=False)
    reads = [thread.submit(_place, bundles, bundle, source, data, panels) for bundle, (thread, data) in turns]
    for done, read in enumerate(reads, 1):
        read.result()
        progress("reading packed weights", done, len(reads))


def _place(bundles: BundleFile, bundle: Bundle, source: ByteSource, data: NDArray[np.uint8], panels: Panels) -> None:
    """Read one bundle into `data` and copy its panels to their places."""
    bundles.read(bundle.number, data.data, source)
    for part in bundle.parts:
        if part.key in panels:
            wanted = panels[part.key][part.first : part.first + part.n_panels]
            wanted.reshape(-1)[:] = data[part.offset : part.offset + wanted.nbytes]


def cached_share(paths: Sequence[Path]) -> float | None:
    """The share of some files that is in the page cache, 0 to 1; None if the system does not report it."""
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
    except (OSError, ValueError):  # a missing or empty file
        return None
    return sum(found) / len(found) if found else None
