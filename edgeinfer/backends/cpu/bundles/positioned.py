"""An open file read and written at places, by any number of threads.

In: a path and flags. Out: bytes. On Windows, where a file has one position, one thread at a time. Raises OSError as it
comes; does not know what is in the file.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path


class PositionedFile:
    """A descriptor that this object owns."""

    def __init__(self, path: Path, flags: int) -> None:
        """Open `path` with flags of `os.open`. Raises OSError."""
        if sys.platform == "win32":
            flags |= os.O_BINARY | os.O_NOINHERIT
        else:
            flags |= os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o644)
        self._position = threading.Lock()

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Fill memory from a place; bytes read, which may be fewer."""
        if sys.platform == "win32":
            with self._position, open(self.descriptor, "rb", buffering=0, closefd=False) as file:
                file.seek(offset)
                return file.readinto(memory) or 0
        return os.preadv(self.descriptor, [memory], offset)

    def read(self, n_bytes: int, offset: int) -> bytes:
        """The bytes at a place; fewer only where the file ends."""
        found, done = bytearray(n_bytes), 0
        with memoryview(found) as memory:
            while done < n_bytes:
                count = self.read_into(memory[done:], offset + done)
                if count == 0:
                    break
                done += count
        return bytes(found[:done])

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at a place, all of them."""
        done = 0
        while done < len(data):
            if sys.platform == "win32":
                with self._position, open(self.descriptor, "r+b", buffering=0, closefd=False) as file:
                    file.seek(offset + done)
                    done += file.write(data[done:]) or 0
            else:
                done += os.pwrite(self.descriptor, data[done:], offset + done)

    def resize(self, n_bytes: int) -> None:
        """Cut the file short or make it longer."""
        os.ftruncate(self.descriptor, n_bytes)

    def sync(self) -> None:
        """Have all that was written on the disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
