"""Finds damaged bundles of a file and makes only these again from the model's file.

In: an open bundle file. Out: what is damaged; a whole file. Packing always gives the same bytes, so a bundle made again
must have the checksum in the table; if it does not, the whole file must be packed again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from edgeinfer.backends.cpu.bundles.assembly import Assembly
from edgeinfer.backends.cpu.bundles.file import BundleFile, at_a_time
from edgeinfer.backends.cpu.bundles.header import checksum
from edgeinfer.errors import BadBundle, DeviceFailed
from edgeinfer.jit.memory import aligned
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.bundle_file import PositionedFile
from edgeinfer.steps import Progress

READERS = 4
"""Reads under way at a time: as many as it takes to keep most disks busy."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A bundle that cannot be used, and why."""

    bundle: Bundle
    reason: str


def find_damage(bundles: BundleFile, progress: Progress) -> list[Damage]:
    """Read everything, past the page cache if possible, and list what is damaged or cannot be read."""
    every = bundles.contents.bundles
    source = bundles.source()

    def examine(bundle: Bundle) -> Damage | None:
        raw = aligned((bundle.padded_bytes + PAGE_BYTES,), np.uint8)
        memory = raw[-raw.ctypes.data % PAGE_BYTES :].data
        try:
            bundles.read(bundle.number, memory, source, again=True)
        except (BadBundle, DeviceFailed) as error:
            return Damage(bundle, str(error))
        return None

    found: list[Damage] = []
    try:
        with ThreadPoolExecutor(at_a_time(every, READERS)) as threads:
            for done, damage in enumerate(threads.map(examine, every), 1):
                found += [] if damage is None else [damage]
                progress("checking", done, len(every))
    finally:
        source.close()
    return found


def mend(bundles: BundleFile, damaged: Sequence[Bundle], assembly: Assembly, progress: Progress) -> bool:
    """Write damaged bundles again, in place; False if that cannot make the file whole. Raises OSError.

    A process that reads such a bundle meanwhile finds it damaged, as before.
    """
    file = PositionedFile(bundles.path, os.O_RDWR)
    try:
        for done, bundle in enumerate(damaged, 1):
            data = assembly.bundle(bundle)
            if checksum(data[: bundle.nbytes]) != bundles.checksum(bundle.number):
                return False
            file.write(data.data, bundles.offset(bundle.number))
            progress("repairing", done, len(damaged))
        file.sync()
    finally:
        file.close()
    return True
