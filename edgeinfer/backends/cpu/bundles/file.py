"""An open bundle file, whose contents are checked before they are used.

In: a path, and what the model's file must hold. Out: bundles, read into the caller's memory and checked on first use.
Files of another model, version or layout and truncated or half-written files are refused. Does not write.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.header import (
    Identity,
    checksum,
    checksums_in,
    identity_of,
    repair,
)
from edgeinfer.errors import BadBundle, DeviceFailed, EngineClosed
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.bundle_file import ByteSource, OpenSource, open_source

HELD_BYTES = 64 << 20
"""Memory for bundles in transit."""


class BundleFile:
    """An open bundle file: make one with `open`, close it or use `with`. Replacing the path does not affect it."""

    def __init__(
        self,
        path: Path,
        contents: Contents,
        identity: Identity,
        checksums: NDArray[np.uint64],
        held: ByteSource,
        opening: OpenSource,
    ) -> None:
        """`checksums`: of all entries, as `header.checksums_in` gives them. Raises BadBundle for a damaged table."""
        self.path, self.contents = path, contents
        self._identity, self._held, self._opening = identity, held, opening
        self._checksums: list[int] = checksums.tolist()
        self._checked = bytearray(len(self._checksums))
        self.table = self._read_table()
        self._closed = False

    @classmethod
    def open(cls, path: Path, contents: Contents, fingerprint: str, opening: OpenSource = open_source) -> BundleFile:
        """Open the file at `path` for the model with this fingerprint.

        Raises BadBundle if it is missing, not readable, or not a whole bundle file of this model and layout.
        """
        identity = identity_of(contents, fingerprint)
        try:
            held = opening(path, False)
        except OSError as error:
            raise BadBundle(f"{path} cannot be opened: {error.strerror or error}; {repair(path)}") from None
        try:
            header, file_bytes = _first_bytes(path, held, identity)
            checksums = checksums_in(path, header, file_bytes, identity)
            return cls(path, contents, identity, checksums, held, opening)
        except BaseException:
            held.close()
            raise

    def _read_table(self) -> NDArray[np.uint8]:
        """The table of records: uint8[table_bytes]."""
        table, records = np.empty(self._identity.table_bytes, np.uint8), self.contents.records
        if records is None:
            return table
        name = records.table_name
        read_whole(self.path, self._held, table.data, self._identity.record_table_offset, f"the {name}")
        if checksum(table) != self._checksums[-1]:
            raise BadBundle(f"{self.path}: its {name} is damaged (wrong checksum); {repair(self.path)}")
        records.check_table(self.path, table)
        return table

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._identity.file_bytes

    @property
    def data_offset(self) -> int:
        """Where the data begins in the file: a multiple of 4096."""
        return self._identity.nbytes

    def offset(self, number: int) -> int:
        """Where a bundle begins in the file: a multiple of 4096."""
        return self._identity.nbytes + self.contents.bundles[number].offset

    def checksum(self, number: int) -> int:
        """The expected checksum of a bundle's bytes (`header.checksum`)."""
        return self._checksums[number]

    def source(self, direct: bool = True) -> ByteSource:
        """Open the file once more, for direct reads past the page cache if possible.

        Raises BadBundle if another file has taken the path meanwhile.
        """
        if self._closed:
            raise EngineClosed(f"{self.path} is closed; open it again to read it")
        try:
            source = self._opening(self.path, direct)
        except OSError as error:
            raise BadBundle(
                f"{self.path} cannot be opened any more: {error.strerror or error}; {repair(self.path)}"
            ) from None
        if source.file_id != self._held.file_id:
            source.close()
            raise BadBundle(f"{self.path} was replaced while it was in use; start again to use the new file")
        return source

    def read(self, number: int, memory: memoryview, source: ByteSource, *, again: bool = False) -> None:
        """Read a bundle with its padding (`Bundle.padded_bytes`) into the start of `memory`, checked as `check` does.

        Raises DeviceFailed if the disk cannot read it, BadBundle if it is not what was written.
        """
        bundle = self.contents.bundles[number]
        read_whole(self.path, source, memory[: bundle.padded_bytes], self.offset(number), self._where(bundle))
        self.check(number, np.frombuffer(memory, np.uint8, bundle.nbytes), again=again)

    def read_pages(self, offset: int, memory: memoryview, source: ByteSource) -> None:
        """Fill `memory` from `offset` of the data, both multiples of 4096, unchecked: `read` the whole bundles first.

        Raises DeviceFailed, BadBundle.
        """
        read_whole(self.path, source, memory, self._identity.nbytes + offset, "a part of a bundle")

    def check(self, number: int, data: NDArray[np.uint8], *, again: bool = False) -> None:
        """Raise BadBundle unless `data`, uint8[nbytes], is what was written. Checks each bundle once, or `again`."""
        if self._checked[number] and not again:
            return
        if checksum(data) != self._checksums[number]:
            where = self._where(self.contents.bundles[number])
            raise BadBundle(f"{self.path}: {where} is damaged (wrong checksum); {repair(self.path)}")
        self._checked[number] = 1

    def _where(self, bundle: Bundle) -> str:
        return f"bundle {bundle.number} ({bundle.stage}, {bundle.nbytes} bytes at {self.offset(bundle.number)})"

    def close(self) -> None:
        """Close the file; sources opened from it stay open. Safe to call twice."""
        self._closed = True
        self._held.close()

    def __enter__(self) -> BundleFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def at_a_time(bundles: Iterable[Bundle], most: int) -> int:
    """How many of these bundles may be in transit at a time: `most`, or fewer if they are large, but at least 1."""
    largest = max((bundle.padded_bytes for bundle in bundles), default=0)
    return max(1, min(most, HELD_BYTES // max(1, largest)))


def read_whole(path: Path, source: ByteSource, memory: memoryview, offset: int, what: str) -> None:
    """Fill `memory` from a place of a file, with as many reads as that takes.

    Raises DeviceFailed if the disk cannot read, BadBundle if the file ends early.
    """
    done = 0
    while done < len(memory):
        try:
            count = source.read_into(memory[done:], offset + done)
        except OSError as error:
            raise unreadable(path, what, error.strerror or str(error)) from error
        if source.is_direct and done + count < len(memory):
            count -= count % PAGE_BYTES  # the next read must begin at a page again
        if count <= 0:
            raise cut_short(path, what, done)
        done += count


def unreadable(path: Path, what: str, reason: str) -> DeviceFailed:
    """The error for a disk that cannot read."""
    return DeviceFailed(f"{path}: {what} cannot be read: {reason}; if the disk is sound, {repair(path)}")


def cut_short(path: Path, what: str, n_bytes: int) -> BadBundle:
    """The error for a file that ends early."""
    return BadBundle(f"{path}: {what} ends after {n_bytes} bytes: the file was cut short; {repair(path)}")


def _first_bytes(path: Path, held: ByteSource, identity: Identity) -> tuple[bytes, int]:
    """As much of the header as exists, and the size of the file."""
    memory = bytearray(identity.nbytes)
    done = 0
    with memoryview(memory) as view:
        while done < len(memory):
            try:
                count = held.read_into(view[done:], done)
            except OSError as error:
                raise DeviceFailed(
                    f"{path}: its header cannot be read: {error.strerror or error}; {repair(path)}"
                ) from error
            if count <= 0:
                break
            done += count
    return bytes(memory[:done]), held.nbytes
