"""An open GGUF model: one mapped file, or all the shards of a split one, and the adapters given with it.

In: a path, and those of adapters. Out: metadata, the tensor table, and each tensor's bytes as a view of the mapping.
Owns the mappings; a `Shard` knows others only by the number and count in its metadata. Does not interpret the bytes.
Bytes that another program cuts off while the file is mapped end the process when they are read (SIGBUS), and bytes that
it writes are those of another model, so sizes and times are compared before. It cannot protect against a change in the
midst of a read, nor against a disk that fails under the mapping.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.errors import BadGGUF, EngineClosed, ModelNotFound
from edgeinfer.models.gguf.adapter import Adapter, transpose, with_transposed
from edgeinfer.models.gguf.header import Header, TensorInfo, parse_header
from edgeinfer.models.gguf.metadata import Metadata
from edgeinfer.models.gguf.other_writers import with_usual_names
from edgeinfer.models.gguf.tensor_scales import repeat_scale, scale_name, with_scales

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

CLOCK_STEP_NS = 3_000_000_000
"""How far a file's time may move by itself: some file systems store it in steps of two seconds."""


class Shard:
    """A mapped file and its header. `split_number` counts from 0; a whole model is shard 0 of 1."""

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header, status: os.stat_result | None = None) -> None:
        """`status`: of the file as it was opened; None for bytes that no other program can change."""
        self.path, self._status = path, status
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
            header = with_usual_names(parse_header(mapping, len(mapping), str(path), index))
            return cls(path, mapping, header, _status(path))
        except BaseException:
            mapping.close()
            raise

    def check_whole(self) -> None:
        """Raises BadGGUF if another program has cut the file short or written to it."""
        if self._status is None:
            return
        if self._mapping.size() < self.nbytes:
            raise BadGGUF(
                f"{self.path} was cut short by another program: it had {self.nbytes} bytes when it was opened, and has "
                f"{self._mapping.size()} now; fetch it again, then open the model again"
            )
        now = _status(self.path)
        if now is None:  # it was moved or deleted: the mapping keeps its bytes
            return
        is_later = abs(now.st_mtime_ns - self._status.st_mtime_ns) > CLOCK_STEP_NS
        if os.path.samestat(now, self._status) and (is_later or now.st_size != self.nbytes):
            raise BadGGUF(f"{self.path} was changed by another program while it was open; open the model again")

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


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


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


class GGUFFile:
    """A GGUF model opened for reading: create it with `GGUFFile.open(path)`, then close it or use `with`.

    `metadata` is that of the first shard; `tensors` are those of all shards, in file order, those with a scale of their
    own as types that contain it (`tensor_scales`); then those of `adapters`, whose files are the last shards.
    """

    def __init__(self, shards: tuple[Shard, ...], adapters: tuple[Adapter, ...] = ()) -> None:
        self._shards = shards
        self.adapters = adapters
        self._closed = False
        self.paths: tuple[Path, ...] = tuple(shard.path for shard in shards)
        self.path: Path = self.paths[0]
        self.metadata: Metadata = shards[0].header.metadata
        self.nbytes: int = sum(shard.nbytes for shard in shards)
        self._stored = _all_tensors(shards, adapters)
        self.tensors: Mapping[str, TensorInfo] = with_transposed(with_scales(self._stored, str(self.path)), adapters)

    @classmethod
    def open(cls, path: str | PathLike[str], adapters: Sequence[AdapterChoice] = ()) -> GGUFFile:
        """Open the file at `path`; any shard of a split model opens all its shards. `adapters` are opened with it.

        Raises ModelNotFound if a file is missing or cannot be read, BadGGUF if one is not a GGUF file or the shards do
        not belong together.
        """
        shards = _open_shards(Path(path))
        try:
            opened = []
            for number, adapter in enumerate(adapters):
                shards.append(Shard.open(Path(adapter.path), len(shards)))
                metadata = shards[-1].header.metadata
                opened.append(Adapter(adapter.path, adapter.scale, metadata, f"adapter.{number}."))
            return cls(tuple(shards), tuple(opened))
        except BaseException:
            for shard in shards:
                shard.close()
            raise

    @classmethod
    def open_beside(cls, path: str | PathLike[str], other: GGUFFile, borrowed: Mapping[str, str]) -> GGUFFile:
        """Open the file at `path` with those tensors named in `borrowed` that it lacks and an open file has.

        `borrowed`: the other file's name for each. Raises as `open`.
        """
        file = cls.open(path)
        try:
            more = [Shard.open(each, len(file._shards) + number) for number, each in enumerate(other.paths)]
        except BaseException:
            file.close()
            raise
        file._shards += tuple(more)
        missing = [(name, theirs) for name, theirs in borrowed.items() if name not in file._stored]
        found = {
            name: shard.header.tensors[theirs]
            for name, theirs in missing
            for shard in more
            if theirs in shard.header.tensors
        }
        file._stored, file.tensors = {**file._stored, **found}, {**file.tensors, **found}
        return file

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of tensor `name`: uint8[nbytes], a read-only view of the mapping, valid as long as it is held.

        Of a matrix with a scale of its own, or transposed, it is a new array.
        Raises BadGGUF if the model has no such tensor, EngineClosed after `close()`.
        """
        if self._closed:
            raise EngineClosed(f"{self.path} is closed; open it again to read {name}")
        info = self.tensors.get(name)
        if info is None:
            raise BadGGUF(f"{self.path} has no tensor {name!r}; it has {len(self.tensors)} others")
        if name not in self._stored:
            return transpose(self._bytes(info), info)
        stored = self._stored[name]
        if info is stored:
            return self._bytes(info)
        return repeat_scale(self._bytes(stored), self._bytes(self._stored[scale_name(name)]), info, str(self.path))

    def check_whole(self, name: str) -> None:
        """Call before bytes of a view of this tensor are read later on. Raises BadGGUF if the file was cut short."""
        if not self._closed:
            self._shards[self.tensors[name].shard].check_whole()

    def _bytes(self, info: TensorInfo) -> NDArray[np.uint8]:
        """A view of a stored tensor. Raises BadGGUF if the file was cut short."""
        self._shards[info.shard].check_whole()
        return self._shards[info.shard].data[info.offset : info.offset + info.nbytes]

    def release(self) -> None:
        """Release the mapped pages to the operating system and drop decoded arrays; both are reloaded on use."""
        if self._closed:
            return
        self.metadata.release()
        for shard in self._shards:
            shard.release()

    def close(self) -> None:
        """Unmap the files; a mapping used by views from `raw` is unmapped with the last of them."""
        self._closed = True
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_shards(path: Path) -> list[Shard]:
    """All shards of the model that a file belongs to."""
    shards = [Shard.open(path, 0)]
    if shards[0].split_count == 1:
        return shards
    try:
        paths = _shard_paths(shards[0])
        if paths[0] == shards[0].path:
            shards += [Shard.open(path, index) for index, path in enumerate(paths) if index]
        else:
            shards[0].close()
            shards = []
            for index, shard_path in enumerate(paths):
                shards.append(Shard.open(shard_path, index))
        _check_split(shards)
        return shards
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def _shard_paths(shard: Shard) -> list[Path]:
    match = _SHARD_NAME.fullmatch(shard.path.name)
    if match is None or int(match["count"]) != shard.split_count:
        raise BadGGUF(
            f"{shard.path} is shard {shard.split_number + 1} of {shard.split_count}; name its files as they were "
            f"published: NAME-{shard.split_number + 1:05}-of-{shard.split_count:05}.gguf"
        )
    names = [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, shard.split_count + 1)]
    paths = [shard.path.with_name(name) for name in names]
    for path in paths:
        if not path.exists():
            raise ModelNotFound(f"{path} is missing; {shard.path.name} needs all {shard.split_count} shards beside it")
    return paths


def _check_split(shards: list[Shard]) -> None:
    for index, shard in enumerate(shards):
        if (shard.split_number, shard.split_count) != (index, len(shards)):
            raise BadGGUF(
                f"{shard.path} says it is shard {shard.split_number + 1} of {shard.split_count}, but its name says "
                f"{index + 1} of {len(shards)}; fetch it again"
            )
    promised = shards[0].header.metadata.integer("split.tensors.count", None)
    found = sum(len(shard.header.tensors) for shard in shards)
    if promised is not None and promised != found:
        raise BadGGUF(f"{shards[0].path}: the shards hold {found} tensors, not {promised}; fetch them again")


def _all_tensors(shards: tuple[Shard, ...], adapters: tuple[Adapter, ...]) -> dict[str, TensorInfo]:
    """The tensors of all shards, those of adapters under their longer names."""
    tensors: dict[str, TensorInfo] = {}
    prefixes = *("" for _ in shards[len(adapters) :]), *(adapter.prefix for adapter in adapters)
    for shard, prefix in zip(shards, prefixes, strict=True):
        for own_name, info in shard.header.tensors.items():
            name = prefix + own_name
            if name in tensors:
                raise BadGGUF(f"{shard.path}: tensor {name!r} is in an earlier shard too; fetch the model again")
            tensors[name] = replace(info, name=name) if prefix else info
    return tensors
