"""Reading a model's header before its body: parses as much of the beginning as needed.

In: a stream (by ranges, of a file in an archive, of a part being received) and the size of the whole file. Out: the
parsed GGUF header. Independent of where the stream comes from and what is decided from the header.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf import Header, HeaderIncomplete, parse_header
from edgeinfer.models.gguf.other_writers import with_usual_names

FIRST_BYTES = 1 << 20
HEADER_CAP_BYTES = 1 << 27  # the largest vocabularies take about 16 MiB

Approve = Callable[[Header, int], None]
"""Called with a model's header and its size in bytes before its body is fetched. Raises DoesNotFit to refuse."""


class Readable(Protocol):
    """A stream that can be read from its beginning."""

    def read(self, nbytes: int, /) -> bytes:
        """The next bytes; fewer only at the end."""


def read_header(stream: Readable, total_bytes: int, where: str) -> Header:
    """Parse the header at the beginning of `stream`, reading little more than necessary.

    `total_bytes` is the size of the whole file, `where` its name in messages. Raises HeaderIncomplete if the stream
    ends inside the header, BadGGUF if it is not a header or an implausibly large one.
    """
    beginning = b""
    wanted_bytes = FIRST_BYTES
    while True:
        beginning += stream.read(wanted_bytes - len(beginning))
        try:
            return with_usual_names(parse_header(beginning, total_bytes, where))
        except HeaderIncomplete as incomplete:
            if len(beginning) < wanted_bytes:
                raise
            wanted_bytes = max(2 * wanted_bytes, incomplete.needed_bytes)
        if wanted_bytes > HEADER_CAP_BYTES:
            raise BadGGUF(f"{where}: the header is longer than {HEADER_CAP_BYTES} bytes; this is no usable model")


def file_header(path: Path) -> Header:
    """The header of a local file. Raises BadGGUF."""
    try:
        with path.open("rb") as file:
            return read_header(file, path.stat().st_size, str(path))
    except HeaderIncomplete:
        raise BadGGUF(f"{path} ends inside its header; it is truncated, fetch it again") from None
    except OSError as error:
        raise BadGGUF(f"{path} cannot be read: {error.strerror or error}") from None


def beginning_header(path: Path, total_bytes: int, where: str) -> Header | None:
    """The header of a partially received file; None while it is incomplete. Raises BadGGUF."""
    try:
        with path.open("rb") as file:
            return read_header(file, total_bytes, where)
    except HeaderIncomplete:
        return None


class HeaderWatch:
    """A `Watcher` of a file received from its beginning: asks `approve` as soon as the header is complete.

    `find` parses the beginning of the file into the model's header and size; None while more is needed. `decided` says
    whether `approve` has been asked.
    """

    def __init__(self, approve: Approve, find: Callable[[Path, int | None], tuple[Header, int] | None]) -> None:
        self._approve = approve
        self._find = find
        self.decided = False

    def __call__(self, path: Path, total_bytes: int | None) -> bool:
        """Inspect the beginning stored at `path`; True once approved. Raises what `approve` raises."""
        found = self._find(path, total_bytes)
        if found is None:
            return False
        self._approve(*found)
        self.decided = True
        return True
