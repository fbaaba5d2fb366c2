"""Bundle files: their default places, and access to their bytes.

In: a model's name and fingerprint, or a path. Out: paths in one folder for all models, with the fingerprint in each
file name, so that a model that was moved or renamed is found again; and a `ByteSource`, from which any number of
threads may read: past the page cache if the file system allows, else through it. Direct reads need memory, places and
sizes that are multiples of 4096. A `PositionedFile` can also be written at any place; on Windows, where a file has a
single position, one thread at a time reads or writes. Does not know what the bytes mean.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from edgeinfer.offload.bundle import PAGE_BYTES
from edgeinfer.text_values import user_path

SUFFIX = ".bundles"
WHOLE = ".whole"
"""Suffix, before SUFFIX, of a file whose layers are read whole although they could be stored as records."""
PART_SUFFIX = ".part"
"""Suffix of a half-written file, after its final name."""
NEURONS = "-neurons"
"""Part of a file's name if the model's small activations count as zero: some matrices are laid out differently."""
VARIANTS = ("", WHOLE, NEURONS, NEURONS + WHOLE)
FINGERPRINT_DIGITS = 16
_UNSAFE = re.compile(r"[^\w.+\-@()]+")
REFUSALS = (errno.EINVAL, errno.ENOTSUP)
"""Error numbers of file systems without direct reads."""


def bundles_folder() -> Path:
    """The folder of bundle files: in $EDGEINFER_HOME if it is set, else in the platform's cache folder."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "bundles"
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer", appauthor=False)) / "bundles"


def bundle_path(name: str, fingerprint: str, variant: str = "") -> Path:
    """The existing bundle file of a model, whatever name the model had when it was written, or the path for a new one.

    `variant`: another layout of the same model, such as WHOLE.
    """
    ending = f"-{fingerprint[:FINGERPRINT_DIGITS]}{variant}{SUFFIX}"
    folder = bundles_folder()
    found = sorted(path for path in folder.glob(f"*{ending}") if path.is_file())
    return found[0] if found else folder / f"{file_stem(name)}{ending}"


def file_stem(name: str) -> str:
    """The start of the bundle file's name for a model of this name."""
    return _UNSAFE.sub("_", name)[:100]


def is_whole(path: Path) -> bool:
    """Whether a file's name says that its layers are read whole although they could be stored as records."""
    return path.name.endswith(f"{WHOLE}{SUFFIX}")


def pack_options(path: Path) -> str:
    """The options of `edgeinfer pack MODEL` that make a file of this name, each after a space."""
    plain = path.name.removesuffix(SUFFIX).removesuffix(WHOLE)
    return f"{' --approx T' if plain.endswith(NEURONS) else ''}{' --whole' if is_whole(path) else ''}"


def firing_path(fingerprint: str) -> Path:
    """Path of the file with counts of the records that a model used (neurons that fired)."""
    return bundles_folder() / f"{fingerprint[:FINGERPRINT_DIGITS]}.firing.json"


def whole_path(path: Path) -> Path:
    """Path of the variant of a bundle file whose layers are read whole; it lies beside the file."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}{WHOLE}{SUFFIX}")


def part_path(path: Path) -> Path:
    """Path under which a bundle file is written until it is complete."""
    return path.with_name(path.name + PART_SUFFIX)


def remove_bundles(path: Path) -> int:
    """Delete a bundle file, complete or half-written, and its variant whose layers are read whole.

    Returns the bytes freed. Raises OSError.
    """
    freed, beside = 0, whole_path(path)
    for each in (path, part_path(path), beside, part_path(beside)):
        if each.is_file():
            freed += each.stat().st_size
            each.unlink()
    return freed


class PositionedFile:
    """A file whose descriptor this object owns."""

    def __init__(self, path: Path, flags: int) -> None:
        """Open `path` with flags of `os.open`. Raises OSError."""
        if sys.platform == "win32":
            flags |= os.O_BINARY | os.O_NOINHERIT
        else:
            flags |= os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o644)
        self._position = threading.Lock()

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill memory from a place; returns the bytes read, which may be fewer."""
        if sys.platform == "win32":
            with self._position, open(self.descriptor, "rb", buffering=0, closefd=False) as file:
                file.seek(offset)
                return file.readinto(memory) or 0
        return os.preadv(self.descriptor, [memory], offset)

    def read(self, n_bytes: int, offset: int) -> bytes:
        """The bytes at a place; fewer only at the end of the file."""
        found, done = bytearray(n_bytes), 0
        with memoryview(found) as memory:
            while done < n_bytes:
                count = self.read_into(memory[done:], offset + done)
                if count == 0:
                    break
                done += count
        return bytes(found[:done])

    def write(self, data: memoryview, offset: int) -> None:
        """Write all bytes at a place."""
        done = 0
        while done < len(data):
            if sys.platform == "win32":
                with self._position, open(self.descriptor, "r+b", buffering=0, closefd=False) as file:
                    file.seek(offset + done)
                    done += file.write(data[done:]) or 0
            else:
                done += os.pwrite(self.descriptor, data[done:], offset + done)

    def resize(self, n_bytes: int) -> None:
        """Truncate or extend the file."""
        os.ftruncate(self.descriptor, n_bytes)

    def sync(self) -> None:
        """Flush everything written to the disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class ByteSource(Protocol):
    """An open file that is read at places."""

    @property
    def is_direct(self) -> bool:
        """Whether reads bypass the page cache."""

    @property
    def file_id(self) -> tuple[int, int]:
        """Equal for the same file, even after it was renamed."""

    @property
    def nbytes(self) -> int:
        """Size of the file when it was opened."""

    @property
    def descriptor(self) -> int | None:
        """The file descriptor, if compiled code may read from it; None if only `read_into` may."""

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill memory from a place of the file; returns the bytes read, which may be fewer. Raises OSError."""

    def close(self) -> None:
        """Close the file. Safe to call twice."""


OpenSource = Callable[[Path, bool], ByteSource]
"""Opens a path, for direct reads if asked to and possible. Raises OSError."""


class DiskSource:
    """A file opened for reading. `drops`: pages are dropped from the page cache after each read."""

    def __init__(self, path: Path, flags: int = 0, *, is_direct: bool = False, drops: bool = False) -> None:
        """Raises OSError if the file cannot be opened."""
        self._file, self._drops = PositionedFile(path, os.O_RDONLY | flags), drops
        self.is_direct = is_direct
        status = os.fstat(self._file.descriptor)
        self.file_id, self.nbytes = (status.st_dev, status.st_ino), status.st_size

    @property
    def descriptor(self) -> int | None:
        """The file descriptor; None if pages must be dropped after each read."""
        return None if self._drops else self._file.descriptor

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill memory from a place of the file; returns the bytes read, which may be fewer. Raises OSError."""
        count = self._file.read_into(memory, offset)
        if self._drops and sys.platform == "linux":
            os.posix_fadvise(self._file.descriptor, offset, count, os.POSIX_FADV_DONTNEED)
        return count

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        with suppress(OSError):  # closing a file on a lost network mount can fail; nothing was written
            self._file.close()

    def __enter__(self) -> DiskSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_source(path: Path, direct: bool) -> DiskSource:
    """Open a file, for direct reads if asked to; if the file system refuses these, pages are dropped after each read.

    Raises OSError.
    """
    if not direct:
        source = DiskSource(path)
        if sys.platform == "linux" and source.descriptor is not None:
            # bundles are read in order, so larger read-ahead pays
            os.posix_fadvise(source.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return source
    if sys.platform == "darwin":
        import fcntl

        source = DiskSource(path, is_direct=True)
        assert source.descriptor is not None
        fcntl.fcntl(source.descriptor, fcntl.F_NOCACHE, 1)
        return source
    if sys.platform == "linux":
        found = _open_direct(path)
        if found is not None:
            return found
    return DiskSource(path, drops=True)


def _open_direct(path: Path) -> DiskSource | None:
    """The file with direct reads; None if the file system refuses them at opening or at the first read."""
    if sys.platform != "linux":
        return None
    source: DiskSource | None = None
    try:
        source = DiskSource(path, os.O_DIRECT, is_direct=True)
        with mmap.mmap(-1, PAGE_BYTES) as page, memoryview(page) as memory:
            source.read_into(memory, 0)
    except OSError as error:
        if source is not None:
            source.close()
        if error.errno in REFUSALS:
            return None
        raise
    return source
