"""One mapped GGUF file.

In: a path. Out: its header and its bytes. Owns the mapping. Knows other shards only by its metadata's shard number and
count.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF, ModelNotFound
from edgeinfer.models.gguf.header import Header, parse_header


class Shard:
    """A mapped file and its header. `split_number` counts from 0; a whole model is shard 0 of 1."""

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header) -> None:
        self.path = path
        self.header = header
        self.nbytes = len(mapping)
        self.split_count = max(1, header.metadata.integer("split.count", 1))
        self.split_number = header.metadata.integer("split.no", 0)
        self._mapping = mapping
        self.data: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)

    @classmethod
    def open(cls, path: Path, index: int) -> Shard:
        """Map the file at `path`, shard number `index`. Raises ModelNotFound and BadGGUF."""
        mapping = _map(path)
        try:
            return cls(path, mapping, parse_header(mapping, len(mapping), str(path), index))
        except BaseException:
            mapping.close()
            raise

    def release(self) -> None:
        """Release the mapped pages to the operating system, if the platform supports it."""
        if sys.platform != "win32":
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the file, now or when its last view is gone."""
        self.header.metadata.close()
        self.data = np.empty(0, np.uint8)
        try:
            self._mapping.close()
        except BufferError:
            # Views still exist; the mapping goes with the last of them.
            return


def _map(path: Path) -> mmap.mmap:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise BadGGUF(f"{path} is a directory, not a GGUF file; name the .gguf file in it")
        if not stat.S_ISREG(status.st_mode):
            raise BadGGUF(f"{path} is not a regular file; GGUF files are mapped, so copy it to disk first")
        if status.st_size == 0:
            raise BadGGUF(f"{path} is empty, not a GGUF file; fetch it again")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"{path} does not exist; name a .gguf file") from None
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{path} cannot be read: {error}") from None
