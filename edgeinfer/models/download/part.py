"""A file being received: the bytes so far, their checksum, what is needed to resume, and the disk space for the rest.

In: bytes in order. Out: a ``.part`` file with a small JSON record beside it (address, size, validators), and the
SHA-256 of the whole. A part of another file, or of one that changed, is restarted. Without room for it, DownloadFailed
says how many bytes are required and how many are free. Independent of HTTP.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from edgeinfer.errors import DownloadFailed
from edgeinfer.text_values import size_text

if TYPE_CHECKING:
    from edgeinfer.models.download.http import Remote  # loads http.client and ssl

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
READ_BYTES = 1 << 20


def require_space(folder: Path, wanted_bytes: int, what: str) -> None:
    """Check that `folder` has room for `wanted_bytes` more. Raises DownloadFailed with the numbers."""
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise disk_full(folder, wanted_bytes, what, free_bytes)


def disk_full(folder: Path, wanted_bytes: int | None, what: str, free_bytes: int | None = None) -> DownloadFailed:
    """The error for a full disk: what is required, what is free, what would help."""
    free_bytes = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    wanted = "more room" if wanted_bytes is None else f"{size_text(wanted_bytes)} ({wanted_bytes} bytes)"
    return DownloadFailed(
        f"{what} needs {wanted} in {folder}, where {size_text(free_bytes)} ({free_bytes} bytes) are free; "
        "make room there, or set EDGEINFER_HOME to a folder on a larger disk"
    )


def part_path(folder: Path, file_name: str, url: str) -> Path:
    """Where a partial download is stored: one path per address."""
    return folder / f"{file_name}.{hashlib.sha256(url.encode()).hexdigest()[:10]}.part"


def record_path(part: Path) -> Path:
    """Path of the record that says what file a part belongs to."""
    return part.with_name(part.name + ".json")


class DownloadPart:
    """An append-only file that a later process can continue; use with `with`.

    Leaving the `with` closes the file. An empty part is removed; any other is kept until `discard`.
    """

    def __init__(self, path: Path, remote: Remote, expected_sha256: str | None) -> None:
        """Open the part at `path`, resuming if it is the beginning of the same file."""
        self.path = path
        self.nbytes = 0
        self._record_path = record_path(path)
        self._record = {
            "url": hashlib.sha256(remote.url.encode()).hexdigest(),
            "nbytes": remote.nbytes,
            "etag": remote.etag,
            "last_modified": remote.last_modified,
            "sha256": expected_sha256,
        }
        self._hash = hashlib.sha256()
        provable = remote.validator is not None or remote.etag is not None or expected_sha256 is not None
        same = remote.ranged and provable and self._stored_record() == self._record and path.exists()
        try:
            self._file = open(path, "r+b" if same else "w+b", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise self._failure(error) from None
        try:
            if same:
                self._read_existing()
            self._record_path.write_text(json.dumps(self._record), encoding="utf-8")
        except OSError as error:
            self._file.close()
            raise self._failure(error) from None

    def __enter__(self) -> DownloadPart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, data: bytes) -> None:
        """Append bytes. Raises DownloadFailed, and discards the part, if the disk is full."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.close()
            raise self._failure(error) from None
        self._hash.update(data)
        self.nbytes += len(data)

    def restart(self) -> None:
        """Discard all bytes."""
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.nbytes = 0

    def complete(self) -> str:
        """Flush to disk and return the SHA-256 of the whole, in hex."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.close()
            raise self._failure(error) from None
        return self._hash.hexdigest()

    def finish(self) -> Path:
        """Close the complete part and delete its record; returns the path, for the caller to rename."""
        self._file.close()
        self._record_path.unlink(missing_ok=True)
        return self.path

    def close(self) -> None:
        """Close the file; remove it if it is empty."""
        self._file.close()
        if self.nbytes == 0:
            self._unlink()

    def discard(self) -> None:
        """Close and remove the file and its record."""
        self._file.close()
        self._unlink()

    def _unlink(self) -> None:
        self.nbytes = 0
        self.path.unlink(missing_ok=True)
        self._record_path.unlink(missing_ok=True)

    def _stored_record(self) -> object:
        try:
            return json.loads(self._record_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None

    def _read_existing(self) -> None:
        while data := self._file.read(READ_BYTES):
            self._hash.update(data)
            self.nbytes += len(data)
        expected = self._record["nbytes"]
        if isinstance(expected, int) and self.nbytes > expected:
            self.restart()

    def _failure(self, error: OSError) -> DownloadFailed:
        """The error to raise for a failed write; the part is deleted, which frees its disk space."""
        total, written = self._record["nbytes"], self.nbytes
        self._unlink()
        if error.errno in FULL:
            return disk_full(self.path.parent, total if isinstance(total, int) else None, "the download")
        return DownloadFailed(f"{self.path} cannot be written after {written} bytes: {error.strerror or error}")
