"""A bundle file that is being written: bundles in any order, a table of those present, and finally its name.

In: bundles with their checksums. Out: a file beside the final path, which is renamed once all data is on the disk.
Bundles that an earlier process left are reused after they have been read again and verified. Does not know how bundles
are made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.header import (
    Identity,
    checksum,
    header_of,
    part_header,
    part_header_of,
    table_entry,
)
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.bundle_file import PositionedFile


class PartFile:
    """A half-written bundle file: make one with `open`, use `with`. A later process can continue it after closing."""

    def __init__(self, path: Path, target: Path, contents: Contents, identity: Identity, stamp: bytes) -> None:
        self.path, self._target = path, target
        self._contents, self._identity, self._stamp = contents, identity, stamp
        self._file = PositionedFile(path, os.O_RDWR | os.O_CREAT)
        self._checksums = np.zeros(identity.n_bundles, np.uint64)

    @classmethod
    def open(cls, path: Path, target: Path, contents: Contents, identity: Identity, stamp: bytes) -> PartFile:
        """Open or create the half-written file at `path`; one made from another source is restarted. Raises OSError."""
        part = cls(path, target, contents, identity, stamp)
        try:
            found = part_header(part._file.read(identity.nbytes, 0), identity)
            if found is not None and found.stamp == stamp:
                part._checksums = found.checksums
            else:
                part._file.resize(0)
                part._file.write(memoryview(part_header_of(identity, stamp)), 0)
        except BaseException:
            part.close()
            raise
        return part

    @property
    def claimed(self) -> list[Bundle]:
        """Bundles that the table lists as present; confirm each with `is_whole`."""
        return [bundle for bundle in self._contents.bundles if self._checksums[bundle.number]]

    @property
    def missing(self) -> list[Bundle]:
        """Bundles that are missing."""
        return [bundle for bundle in self._contents.bundles if not self._checksums[bundle.number]]

    def is_whole(self, bundle: Bundle) -> bool:
        """Whether a bundle can be read and matches its checksum; if not, it counts as missing from now on."""
        try:
            data = np.frombuffer(self._file.read(bundle.nbytes, self._place(bundle)), np.uint8)
        except OSError:
            data = np.empty(0, np.uint8)
        whole = len(data) == bundle.nbytes and checksum(data) == self._checksums[bundle.number]
        if not whole:
            self._checksums[bundle.number] = 0
        return whole

    def write(self, bundle: Bundle, data: NDArray[np.uint8]) -> int:
        """Write the bytes of a bundle with its padding, uint8[padded_bytes]; returns their checksum. Raises OSError."""
        value = checksum(data[: bundle.nbytes])
        self._file.write(data.data, self._place(bundle))
        return value

    def keep(self, written: Iterable[tuple[Bundle, int]]) -> None:
        """Record bundles as present once their bytes are on the disk. Raises OSError."""
        self._file.sync()
        for bundle, value in written:
            self._checksums[bundle.number] = value
            offset, entry = table_entry(self._identity, bundle.number, value)
            self._file.write(memoryview(entry), offset)

    def finish(self, order: NDArray[np.uint8]) -> None:
        """Turn it into a whole bundle file with its final name and these bytes of its order. Raises OSError."""
        assert not self.missing
        self._file.resize(self._identity.file_bytes)
        checksums = self._checksums
        if len(order):
            self._file.write(order.data, self._identity.order_offset)
            checksums = np.append(checksums, np.uint64(checksum(order)))
        self._file.write(memoryview(header_of(self._identity, self._stamp, checksums)), 0)
        self._file.sync()
        self.close()
        os.replace(self.path, self._target)
        _sync_folder(self._target.parent)

    def drop(self) -> None:
        """Delete the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _place(self, bundle: Bundle) -> int:
        return self._identity.nbytes + bundle.offset

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._file.close()

    def __enter__(self) -> PartFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sync_folder(folder: Path) -> None:
    """Flush the new name to the disk if folders can be synchronised."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
