"""Packs a model into a bundle file, one group of bundles after another, so memory is bounded and a stop costs little.

In: an open model file, its contents and fingerprint, a path. Out: a whole file under that path, renamed once all data
is on the disk, or the error and a half-written file beside it that the next pack continues: its bundles are read again
and verified. The model file must not change meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.assembly import Assembly
from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.bundles.file import at_a_time
from edgeinfer.backends.cpu.bundles.header import (
    Identity,
    checksum,
    digest,
    header_of,
    identity_of,
    part_header,
    part_header_of,
    table_entry,
)
from edgeinfer.errors import DownloadFailed, PackFailed
from edgeinfer.file_lock import FileLock
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.download.part import FULL
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.bundle_file import PositionedFile, part_path
from edgeinfer.private_files import readable_folder
from edgeinfer.steps import Progress
from edgeinfer.temporary import put_in_place
from edgeinfer.text_values import size_text


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

    def finish(self, table: NDArray[np.uint8]) -> None:
        """Turn it into a whole bundle file with its final name and this table of records. Raises OSError."""
        assert not self.missing
        self._file.resize(self._identity.file_bytes)
        checksums = self._checksums
        if len(table):
            self._file.write(table.data, self._identity.record_table_offset)
            checksums = np.append(checksums, np.uint64(checksum(table)))
        self._file.write(memoryview(header_of(self._identity, self._stamp, checksums)), 0)
        self._file.sync()
        self.close()
        put_in_place(self.path, self._target)
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


GROUP_BYTES = 32 << 20
"""Bundles that are flushed to the disk together: the most that is lost when packing is stopped."""
WORKERS_MAX = 8
"""Most threads: more are not faster than disks."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A whole bundle file: `kept_bytes` of `nbytes` were reused from an earlier pack that was stopped."""

    path: Path
    nbytes: int
    kept_bytes: int


def pack_bundles(
    path: Path,
    file: GGUFFile,
    contents: Contents,
    fingerprint: str,
    library: KernelLibrary,
    n_workers: int,
    progress: Progress,
    table: NDArray[np.uint8] | None = None,
) -> Packed:
    """Pack the open model into a bundle file at `path`, replacing any existing file.

    `table`: of records, None for the usual one of a new file.
    Waits for another process that is packing there. Raises PackFailed for a full disk, a folder that cannot be written,
    or a model file that changes meanwhile.
    """
    identity, records = identity_of(contents, fingerprint), contents.records
    if table is None:
        table = np.zeros(0, np.uint8) if records is None else records.new_table()
    try:
        readable_folder(path.parent)
        with pack_lock(path, progress):
            stamp = stamp_of(file)
            made_of = digest(stamp + table.tobytes()) if len(table) else stamp
            with PartFile.open(part_path(path), path, contents, identity, made_of) as part:
                kept_bytes = _still_there(part, progress)
                _require_space(path, identity.data_bytes - kept_bytes)
                assembly = Assembly(file, contents, library, table)
                _write(part, part.missing, assembly, file, stamp, n_workers, progress)
                part.finish(table)
    except DownloadFailed as error:
        raise PackFailed(str(error)) from None
    except OSError as error:
        raise write_failure(error, path, identity.file_bytes) from error
    return Packed(path, identity.file_bytes, kept_bytes)


def pack_lock(path: Path, progress: Progress | None = None) -> FileLock:
    """Lock a bundle file against other processes that would write it.

    `progress`: reports the wait for another process. Without it, entering the lock raises DownloadFailed instead.
    """

    def waiting(pid: int | None) -> None:
        assert progress is not None
        who = "another process" if pid is None else f"process {pid}"
        progress(f"waiting for {who}, which is packing {path.name}", 0, 0)

    lock = path.with_name(f".{path.name}.lock")
    return FileLock(lock, str(path), "packing", None if progress is None else waiting)


def wait_for_packing(path: Path, progress: Progress) -> None:
    """Wait until no other process writes a bundle file."""
    with suppress(OSError), pack_lock(path, progress):
        pass


def stamp_of(file: GGUFFile) -> bytes:
    """A stamp that changes with the files of an open model: sizes and times. Raises PackFailed if they have changed."""
    lines, n_bytes = [], 0
    for path in file.paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise PackFailed(f"{path} cannot be read any more ({error.strerror}); put it back and pack again") from None
        lines.append(f"{status.st_size} {status.st_mtime_ns}")
        n_bytes += status.st_size
    if n_bytes != file.nbytes:
        raise changed(file)
    return digest("\n".join(lines).encode())


def changed(file: GGUFFile) -> PackFailed:
    """The error for a model file that changed during packing."""
    return PackFailed(f"{file.path} changed while it was packed; pack it again when it is whole")


def _still_there(part: PartFile, progress: Progress) -> int:
    """Bytes of the bundles from an earlier pack that are intact."""
    claimed, kept_bytes = part.claimed, 0
    for number, bundle in enumerate(claimed, 1):
        if part.is_whole(bundle):
            kept_bytes += bundle.padded_bytes
        progress("checking what is packed already", number, len(claimed))
    return kept_bytes


def _require_space(path: Path, wanted_bytes: int) -> None:
    """Raise PackFailed if the disk does not have that much room left."""
    free_bytes = shutil.disk_usage(path.parent).free
    if wanted_bytes > free_bytes:
        raise _disk_full(path, wanted_bytes, free_bytes)


def _disk_full(path: Path, wanted_bytes: int, free_bytes: int) -> PackFailed:
    return PackFailed(
        f"packing needs {size_text(wanted_bytes)} more in {path.parent}, where {size_text(free_bytes)} are free; make "
        f"room there and pack again, which goes on from what is in {part_path(path).name}, or set EDGEINFER_HOME, the "
        "place of all of edgeinfer's files, to a folder on a larger disk"
    )


def write_failure(error: OSError, path: Path, file_bytes: int) -> PackFailed:
    """The error to report for a system error while a bundle file of that size is written."""
    if error.errno == errno.EFBIG:
        return PackFailed(
            f"{path.parent} takes no file of {size_text(file_bytes)} (a limit of its file system or of this process); "
            "set EDGEINFER_HOME to a folder on another disk"
        )
    if error.errno in FULL:
        part = part_path(path)
        done = part.stat().st_size if part.exists() else 0
        return _disk_full(path, max(0, file_bytes - done), shutil.disk_usage(path.parent).free)
    return PackFailed(
        f"{path} cannot be written: {error.strerror or error}; set EDGEINFER_HOME to a folder that can be"
    )


def _write(
    part: PartFile,
    missing: Sequence[Bundle],
    assembly: Assembly,
    file: GGUFFile,
    stamp: bytes,
    n_workers: int,
    progress: Progress,
) -> None:
    """Make and write bundles. If the model file changes, what was made of it is deleted."""
    n_all = len(part.claimed) + len(missing)
    done = n_all - len(missing)
    with ThreadPoolExecutor(at_a_time(missing, min(n_workers, WORKERS_MAX))) as pool:
        progress("packing", done, n_all)
        for group in _groups(missing):
            sums = list(pool.map(lambda bundle: part.write(bundle, assembly.bundle(bundle)), group))
            file.release()
            if stamp_of(file) != stamp:
                part.drop()
                raise changed(file)
            part.keep(zip(group, sums, strict=True))
            done += len(group)
            progress("packing", done, n_all)


def _groups(bundles: Sequence[Bundle]) -> Iterator[list[Bundle]]:
    """Groups of consecutive bundles, some megabytes each."""
    group: list[Bundle] = []
    for bundle in bundles:
        group.append(bundle)
        if sum(each.nbytes for each in group) >= GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group
