"""Random access to a remote file, as if it were open locally.

In: a `Remote` that serves ranges. Out: a seekable binary stream whose reads are small range requests, so `zipfile` can
list an archive, or a header can be parsed, without fetching the body. Stores nothing on disk.
"""

from __future__ import annotations

import io
import time

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.http import CONTENT_RANGE, ConnectionCutError, Remote, open_url, read_piece, shown
from edgeinfer.models.download.policy import DownloadPolicy

BUFFER_BYTES = 1 << 18
READ_CAP_BYTES = 1 << 28  # limit for reading a header; no archive directory or header is larger


class RangedFile(io.RawIOBase):
    """The bytes of a `Remote`, fetched as they are read. Reads raise DownloadFailed."""

    def __init__(self, remote: Remote, policy: DownloadPolicy) -> None:
        super().__init__()
        if remote.nbytes is None or not remote.ranged:
            raise DownloadFailed(f"{shown(remote.url)} cannot be read in parts")
        self._remote = remote
        self._nbytes = remote.nbytes
        self._policy = policy
        self._place = 0
        self._fetched_bytes = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the read position; sends nothing."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._nbytes}[whence]
        if base + offset < 0:
            raise OSError(f"no byte {base + offset} in {shown(self._remote.url)}")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """The read position."""
        return self._place

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        """Fill `target` from the read position with one range request; less at the end of the file."""
        wanted = min(len(target), self._nbytes - self._place)
        if wanted <= 0:
            return 0
        if self._fetched_bytes + wanted > READ_CAP_BYTES:
            raise DownloadFailed(f"{shown(self._remote.url)}: its header is larger than {READ_CAP_BYTES} bytes")
        data = self._fetch(self._place, wanted)
        target[: len(data)] = data
        self._place += len(data)
        self._fetched_bytes += len(data)
        return len(data)

    def _fetch(self, start: int, nbytes: int) -> bytes:
        for failures in range(1, self._policy.attempts + 1):
            try:
                return self._fetch_once(start, nbytes)
            except ConnectionCutError as cut:
                reason = str(cut)
                if failures < self._policy.attempts:
                    time.sleep(self._policy.wait_s(failures))
        raise DownloadFailed(f"{shown(self._remote.url)}: {reason}, {self._policy.attempts} times; try again later")

    def _fetch_once(self, start: int, nbytes: int) -> bytes:
        headers = {**dict(self._remote.headers), "Range": f"bytes={start}-{start + nbytes - 1}"}
        with open_url(self._remote.url, headers, self._policy) as response:
            matched = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if response.status != 206 or matched is None or int(matched[1]) != start:
                raise DownloadFailed(f"{shown(self._remote.url)} no longer serves parts of the file; try again")
            if int(matched[3]) != self._nbytes or response.headers.get("ETag") != self._remote.etag:
                raise DownloadFailed(f"{shown(self._remote.url)} changed while it was read; try again")
            pieces = bytearray()
            while len(pieces) < nbytes and (piece := read_piece(response, nbytes - len(pieces))):
                pieces += piece
        if len(pieces) < nbytes:
            raise ConnectionCutError("the connection broke")
        return bytes(pieces)


def open_ranged(remote: Remote, policy: DownloadPolicy) -> io.BufferedReader:
    """A buffered, seekable stream over `remote`. Raises DownloadFailed if the server does not serve ranges."""
    return io.BufferedReader(RangedFile(remote, policy), BUFFER_BYTES)
