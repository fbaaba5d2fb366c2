"""A file of named parts, each with its checksum, that is written whole or not at all and trusted only where verified.

In: names and contents, in order. Out: a file, and the verified contents of its parts, read by several threads: from the
page cache if they are there, else past it, so that weights stay cached. Layout: a sealed header, then the parts, each
at a multiple of 4096. Does not know what the bytes mean.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from operator import index
from pathlib import Path

import numpy as np

from edgeinfer.engine.kv.saved_state import CHECKSUM_BYTES, LENGTH, Value, seal, unseal
from edgeinfer.errors import EdgeInferError
from edgeinfer.offload.bundle import PAGE_BYTES
from edgeinfer.offload.bundle_file import DiskSource, open_source
from edgeinfer.temporary import temporary_file

MAGIC = b"EDGEINFER PARTS 2\n"
HEADER_BYTES = 256
"""More than a header takes beside names, sizes and checksums."""
SIZE_DIGITS = 12
ROW_BYTES = 4096
BEGINNING_BYTES = 16 * PAGE_BYTES
MOST_HEADER_BYTES = 64 << 20
"""A larger header is damaged: those of a million tokens take a fifth of it."""
THREADS = 3
MOST_UNSUMMED = 4
"""Parts that wait for their checksum while others are written."""
AHEAD = 2
"""Parts per thread that are read before they are taken, at least."""


class DamagedFile(EdgeInferError):
    """A file of parts is not what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is damaged")
        self.path = path


def rounded_up(n_bytes: int) -> int:
    """The next multiple of what direct reads need."""
    return -(-n_bytes // PAGE_BYTES) * PAGE_BYTES


def parts_start(names: Sequence[str]) -> int:
    """Where the parts of a file with these names begin: at a place that leaves room for the header."""
    return rounded_up(sum(len(name) + 2 * CHECKSUM_BYTES + SIZE_DIGITS for name in names) + HEADER_BYTES)


def write_parts(path: Path, names: Sequence[str], parts: Iterable[memoryview]) -> int:
    """Write a file; returns how many parts it has, which is fewer than names if there were fewer parts.

    Writes nothing if there was none. Checksums are computed by another thread meanwhile. Raises OSError.
    """
    start = parts_start(names)
    handle, temporary = temporary_file(path)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file, ThreadPoolExecutor(1) as hashing:
            file.seek(start)
            sizes, sums = list[int](), list[Future[str]]()
            for part in parts:
                sums.append(hashing.submit(checksum, part))
                if len(sums) > MOST_UNSUMMED:
                    sums[-1 - MOST_UNSUMMED].result()
                _write_all(file.fileno(), part)
                sizes.append(len(part))
                file.seek(start + sum(map(rounded_up, sizes)))
            if not sizes:
                os.unlink(temporary)
                return 0
            file.truncate(start + sum(map(rounded_up, sizes)))
            header: dict[str, Value] = {
                "start": start,
                "names": " ".join(names[: len(sizes)]),
                "sizes": sizes,
                "sums": " ".join(each.result() for each in sums),
            }
            file.seek(0)
            _write_all(file.fileno(), memoryview(seal(MAGIC, header, b"")))
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return len(sizes)


def _write_all(descriptor: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])


def checksum(data: memoryview) -> str:
    """The checksum of a part: a hash of its sums by rows and by columns, and of the bytes that fill no row.

    That takes a fraction of the time of a hash of all bytes. It is against damage, not against forgery: whoever may
    write these files may write any. Only words that change in four places at once, at the corners of a rectangle and
    by the same amount, go unnoticed.
    """
    n_whole = len(data) // ROW_BYTES * ROW_BYTES
    digest = hashlib.blake2b(data[n_whole:], digest_size=CHECKSUM_BYTES)
    if n_whole:
        table = np.frombuffer(data, np.uint64, n_whole // 8).reshape(-1, ROW_BYTES // 8)
        for axis in (0, 1):
            digest.update(np.add.reduce(table, axis=axis))
    return digest.hexdigest()


class PartsFile:
    """An open file. Close it, or use `with`."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, also for what is no ordinary file, and DamagedFile."""
        if not path.is_file():  # opening a pipe could take forever
            raise FileNotFoundError(path)
        self.path = path
        self._source = DiskSource(path)
        self._direct: DiskSource | None = None
        self._opening = threading.Lock()
        self.is_unwanted = False
        """The file is to be deleted: Windows does that to no file that is open, so `close` does it there."""
        try:
            self.names, self._sizes, self._sums, self._places = self._opened()
        except (EdgeInferError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.close()
            raise DamagedFile(path) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PartsFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._source.close()
        if self._direct is not None:
            self._direct.close()
        if self.is_unwanted and sys.platform == "win32":
            with suppress(OSError):
                os.unlink(self.path)

    def size(self, number: int) -> int:
        """Bytes of a part."""
        return self._sizes[number]

    def read(self, number: int, memory: memoryview) -> memoryview:
        """A part, read into memory of a rounded size or more and verified. Raises OSError, and DamagedFile."""
        size, place = self._sizes[number], self._places[number]
        room = memory[: rounded_up(size)]
        if self._read_cached(room, place) < len(room):
            self._read_direct(room, place)
        part = room[:size]
        if checksum(part) != self._sums[number]:
            self.is_unwanted = True
            raise DamagedFile(self.path)
        return part

    def _read_cached(self, room: memoryview, place: int) -> int:
        """Read from the page cache as far as everything is there; returns how many bytes that was."""
        descriptor, at_once = self._source.descriptor, getattr(os, "RWF_NOWAIT", 0)
        if sys.platform != "linux" or descriptor is None or not at_once:
            return 0
        try:
            return os.preadv(descriptor, [room], place, at_once)
        except OSError:
            return 0

    def _read_direct(self, room: memoryview, place: int) -> None:
        source, done = self._direct_source(), 0
        while done < len(room):
            count = source.read_into(room[done:], place + done)
            if not count:
                self.is_unwanted = True
                raise DamagedFile(self.path)
            done += count

    def _direct_source(self) -> DiskSource:
        """The same file for direct reads; as it is open if another process has deleted or replaced it meanwhile."""
        with self._opening:
            if self._direct is None:
                try:
                    self._direct = open_source(self.path, direct=True)
                except OSError:
                    self._direct = self._source
            return self._direct if self._direct.file_id == self._source.file_id else self._source

    def _opened(self) -> tuple[list[str], list[int], list[str], list[int]]:
        """Names, sizes, checksums and places of all parts. Raises what a header that is none leads to."""
        beginning = self._beginning(BEGINNING_BYTES)
        if not beginning.startswith(MAGIC) or len(beginning) < len(MAGIC) + LENGTH.size:
            raise ValueError
        n_bytes = len(MAGIC) + LENGTH.size + LENGTH.unpack_from(beginning, len(MAGIC))[0] + CHECKSUM_BYTES
        if n_bytes > MOST_HEADER_BYTES:
            raise ValueError
        if n_bytes > len(beginning):
            beginning = self._beginning(min(n_bytes, self._source.nbytes))
        header, _ = unseal(MAGIC, beginning[:n_bytes], str(self.path))
        names, sums, told = str(header["names"]).split(), str(header["sums"]).split(), header["sizes"]
        if isinstance(told, int | str):
            raise ValueError
        sizes = [index(size) for size in told]
        places, place = list[int](), int(str(header["start"]))
        for size in sizes:
            places.append(place)
            place += rounded_up(size)
        is_whole = len(names) == len(sums) == len(sizes) and min(sizes, default=0) >= 0
        if not is_whole or place != self._source.nbytes:
            raise ValueError
        return names, sizes, sums, places

    def _beginning(self, n_bytes: int) -> bytes:
        """The first bytes; fewer if the file is shorter."""
        found, done = bytearray(min(n_bytes, self._source.nbytes)), 0
        with memoryview(found) as memory:
            while done < len(found):
                count = self._source.read_into(memory[done:], done)
                if not count:
                    break
                done += count
        return bytes(found[:done])


Take = Callable[[int, memoryview], object]
"""Takes a part, given its place in the order and its contents."""


class PartsReader:
    """Parts of files in order, read and verified ahead by threads. Iterate over it once; close it, or use `with`.

    Each part is valid until the next is yielded. Iterating raises OSError, and DamagedFile.
    """

    def __init__(self, parts: Sequence[tuple[PartsFile, int]], ahead_bytes: int = 0) -> None:
        """Begin to read. `ahead_bytes`: memory for parts that are read before they are yielded; a few always are."""
        self._left, self._coming = deque(parts), deque[tuple[Future[memoryview], memoryview]]()
        n_threads = max(1, min(THREADS, len(parts)))
        largest = max([PAGE_BYTES, *(rounded_up(file.size(number)) for file, number in parts)])
        n_rooms = min(len(parts), max(n_threads * AHEAD + 1, ahead_bytes // largest))
        self._rooms = deque(memoryview(mmap.mmap(-1, largest)) for _ in range(n_rooms))
        self._threads = ThreadPoolExecutor(n_threads, "edgeinfer prefix")
        self._take: Take | None = None
        self._n_begun = 0
        self._read_on()

    def __enter__(self) -> PartsReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[memoryview]:
        while self._coming:
            future, room = self._coming.popleft()
            yield future.result()
            self._rooms.append(room)
            self._read_on()

    @property
    def is_ahead(self) -> bool:
        """Whether all parts are read, or as many as there is memory for."""
        return all(future.done() for future, _ in self._coming)

    def give(self, take: Take) -> None:
        """Have the threads call `take` for each part before it is yielded, several at a time. Call before iterating."""
        self._take, coming = take, tuple(self._coming)
        self._coming.clear()
        for place, (future, room) in enumerate(coming):
            self._coming.append((self._threads.submit(_given, take, place, future), room))

    def close(self) -> None:
        """End the threads and forget `take`, which may refer to this reader and keep its memory. Safe to call twice."""
        self._left.clear()
        for future, _ in self._coming:
            future.cancel()
        self._threads.shutdown()
        self._take = None

    def _read_on(self) -> None:
        while self._left and self._rooms:
            (file, number), room = self._left.popleft(), self._rooms.popleft()
            reading = self._threads.submit(_read, self._take, self._n_begun, file, number, room)
            self._coming.append((reading, room))
            self._n_begun += 1


def _read(take: Take | None, place: int, file: PartsFile, number: int, room: memoryview) -> memoryview:
    content = file.read(number, room)
    if take is not None:
        take(place, content)
    return content


def _given(take: Take, place: int, read: Future[memoryview]) -> memoryview:
    content = read.result()
    take(place, content)
    return content
