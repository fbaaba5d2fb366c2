"""The bundle file of a model: packed, opened, checked, repaired.

In: an open model and the path of its bundle file. Out: the file, and what was done to it. Packing always gives the same
bytes, so a damaged bundle that is made again must have the checksum in the table; if it does not, the whole file must
be packed again. Does not decide what a file is used for or when one is made automatically.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.assembly import Assembly
from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.bundles.file import BundleFile, at_a_time
from edgeinfer.backends.cpu.bundles.header import checksum, is_bundle_file
from edgeinfer.backends.cpu.bundles.writing import pack_bundles, pack_lock, wait_for_packing, write_failure
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.offload import Bundled
from edgeinfer.errors import BadBundle, DeviceFailed, DownloadFailed, PackFailed
from edgeinfer.jit.memory import aligned
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.load import Model
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.bundle_file import SUFFIX, PositionedFile
from edgeinfer.steps import Progress


class Bundling:
    """One model's bundle file at `path`. `by_records` False: no layer of it is stored as records."""

    def __init__(self, model: Model, path: Path, n_workers: int, *, by_records: bool = True) -> None:
        self._model, self.path, self._n_workers = model, path, n_workers
        self._contents: Contents = contents_of(model.spec, model.file.tensors, by_records=by_records)
        self._fingerprint = fingerprint(model.file)

    @property
    def data_bytes(self) -> int:
        """Bytes of all bundles of the model."""
        return self._contents.data_bytes

    def open(self) -> BundleFile:
        """Open the file; the caller closes it. Raises BadBundle if it is missing or not this model's."""
        return BundleFile.open(self.path, self._contents, self._fingerprint)

    def check(self) -> None:
        """Raise BadBundle if the file is missing or not this model's."""
        self.open().close()

    def pack(self, progress: Progress) -> Bundled:
        """Make sure that the file exists: use the existing one, wait for another process that packs it, or pack it.

        Raises BadBundle if a file exists that is not this model's, PackFailed as `pack_bundles` does.
        """
        if not self.path.exists():
            wait_for_packing(self.path, progress)
        if not self.path.exists():
            return self.pack_anew(progress)
        with self.open() as bundles:
            return Bundled(self.path, bundles.nbytes, "present")

    def pack_anew(self, progress: Progress) -> Bundled:
        """Pack a new file, replacing any existing one. Raises PackFailed as `pack_bundles` does."""
        return self._packed(progress)

    def damage(self, progress: Progress) -> list[Damage]:
        """Read the whole file and list its damaged bundles. Raises BadBundle if it cannot be used at all."""
        with self.open() as bundles:
            return find_damage(bundles, progress)

    def repair(self, progress: Progress) -> Bundled:
        """Make the file whole: damaged bundles are made again, or all of them if the file is not this model's.

        Raises PackFailed as `pack_bundles` does, and if the existing file is not a bundle file.
        """
        if not self.path.exists():
            return self._packed(progress)
        self._refuse_others()
        try:
            bundles = self.open()
        except BadBundle:
            return self._packed(progress)
        with bundles:
            damaged = [damage.bundle for damage in find_damage(bundles, progress)]
            if not damaged:
                return Bundled(self.path, bundles.nbytes, "present")
            try:
                with pack_lock(self.path):
                    assembly = Assembly(self._model.file, self._contents, kernel_library(), bundles.table)
                    whole = mend(bundles, damaged, assembly, progress)
            except DownloadFailed as error:
                raise PackFailed(str(error)) from None
            except OSError as error:
                raise write_failure(error, self.path, bundles.nbytes) from error
            if whole:
                return Bundled(self.path, bundles.nbytes, "repaired", n_repaired=len(damaged))
        return self._packed(progress, bundles.table)

    def pack_with(self, table: NDArray[np.uint8], progress: Progress) -> Bundled:
        """Pack a file with this table of records, replacing any existing one.

        Raises PackFailed as `pack_bundles` does, and if the existing file is not a bundle file.
        """
        if self.path.exists():
            self._refuse_others()
        return self._packed(progress, table)

    def _packed(self, progress: Progress, table: NDArray[np.uint8] | None = None) -> Bundled:
        packed = pack_bundles(
            self.path,
            self._model.file,
            self._contents,
            self._fingerprint,
            kernel_library(),
            self._n_workers,
            progress,
            table,
        )
        return Bundled(packed.path, packed.nbytes, "packed", packed.kept_bytes)

    def _refuse_others(self) -> None:
        """Raise PackFailed if the existing file does not look like a bundle file: it must not be overwritten."""
        if self.path.suffix != SUFFIX and not is_bundle_file(self.path):
            raise PackFailed(f"{self.path} is not a bundle file; name another place with --out FILE")


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
