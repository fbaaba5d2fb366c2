"""A model's files on the nodes of a cluster: found there, pulled there, or sent over Ray's object store.

In: the files on the computer that asks. Out: paths on a node to files that are the same by size and samples. A node
fetches a file once, whoever needs it there: under a lock, in pieces whose hashes are checked, renamed when whole. Does
not know what the files hold.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edgeinfer.errors import EdgeInferError
from edgeinfer.file_lock import FileLock
from edgeinfer.private_files import readable_folder, readably
from edgeinfer.temporary import put_in_place, temporary_path

if TYPE_CHECKING:
    from edgeinfer.models.store import LocalModel, ModelStore

PIECE_BYTES = 16 << 20
KEPT_PIECES = 4
"""Pieces of a file that stay in the object store for nodes that ask a little later."""
END_BYTES, SAMPLE_BYTES, N_SAMPLES = 1 << 20, 1 << 16, 64
"""What is compared of a file: both ends (a GGUF file begins with its header), and samples in between."""
PULLED = ("hf:", "pypi:", "https:", "http:")
"""Beginnings of sources from which any computer can pull."""


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that nodes need: where it is on the computer that asks, its size, and a hash of samples of it."""

    path: str
    nbytes: int
    digest: str

    @classmethod
    def of(cls, path: Path) -> SentFile:
        """Raises EdgeInferError if it cannot be read."""
        try:
            nbytes = path.stat().st_size
            return cls(str(path.absolute()), nbytes, sampled_digest(path, nbytes))
        except OSError as reason:
            raise EdgeInferError(f"{path} cannot be read: {reason.strerror or reason}") from None

    def is_at(self, path: Path) -> bool:
        """Whether a file has the same size and samples."""
        try:
            return (
                path.is_file()
                and path.stat().st_size == self.nbytes
                and self.digest == sampled_digest(path, self.nbytes)
            )
        except OSError:
            return False

    @property
    def n_pieces(self) -> int:
        """How many pieces it is sent in."""
        return -(-self.nbytes // PIECE_BYTES)


def sampled_digest(path: Path, nbytes: int) -> str:
    """A hash of a file's size, its two ends and samples in between. Raises OSError."""
    digest = hashlib.blake2b(str(nbytes).encode(), digest_size=16)
    step = max(1, nbytes // N_SAMPLES)
    with path.open("rb") as file:
        digest.update(file.read(END_BYTES))
        for start in range(END_BYTES, max(END_BYTES, nbytes - END_BYTES), max(step, SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, nbytes - END_BYTES))
        digest.update(file.read(END_BYTES))
    return digest.hexdigest()


Piece = tuple[bytes, str]
"""Bytes of a file, and their hash."""


class Pieces(Protocol):
    """Where a node gets pieces of files from."""

    def __call__(self, file: int, number: int) -> Piece: ...


class FileSender:
    """An actor on the computer that asks: reads pieces of its files for the nodes. Run by Ray."""

    def __init__(self, files: Sequence[SentFile]) -> None:
        self._files = files
        self._kept: OrderedDict[tuple[int, int], tuple[Any, str]] = OrderedDict()
        self._n_sent = 0

    def piece(self, file: int, number: int) -> tuple[list[Any], str]:
        """A reference to a piece, which nodes then also give to each other, and its hash."""
        import ray

        self._n_sent += 1
        key = file, number
        if key not in self._kept:
            with open(self._files[file].path, "rb") as opened:
                opened.seek(number * PIECE_BYTES)
                data = opened.read(PIECE_BYTES)
            self._kept[key] = ray.put(data), _hash(data)
            while len(self._kept) > KEPT_PIECES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        reference, digest = self._kept[key]
        return [reference], digest

    def n_sent(self) -> int:
        """How many pieces nodes have asked for."""
        return self._n_sent


def pieces_of(source: Any) -> Pieces:
    """Pieces from the actor `source`. Raises EdgeInferError where it has gone."""

    def piece(file: int, number: int) -> Piece:
        import ray

        try:
            (reference,), digest = ray.get(source.piece.remote(file, number))
            return ray.get(reference), digest
        except ray.exceptions.RayError as reason:
            raise EdgeInferError(
                f"the model's file does not come over Ray any more ({type(reason).__name__}); run the batch again"
            ) from None

    return piece


@dataclass(frozen=True, slots=True)
class SentModel:
    """A model's files, those of its first `n_own` and others beside them, and how it is called where it is listed."""

    name: str
    source: str
    files: tuple[SentFile, ...]
    n_own: int

    @classmethod
    def of(cls, model: LocalModel, beside: Iterable[Path] = ()) -> SentModel:
        """Raises EdgeInferError if a file cannot be read."""
        files = (*model.paths, *beside)
        return cls(model.name, model.source, tuple(map(SentFile.of, files)), len(model.paths))

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)


def bring(sent: SentModel, pieces: Pieces, store: ModelStore | None = None, folder: Path | None = None) -> list[Path]:
    """Paths on this node of all files: at the same path, in the store or pulled, else fetched from the one who asks.

    Raises EdgeInferError. `store`, `folder`: where models are, and where fetched files go.
    """
    own = _in_place(sent.files[: sent.n_own]) or _from_store(sent, store)
    own = own or _fetched(sent, range(sent.n_own), pieces, folder)
    others = range(sent.n_own, len(sent.files))
    return own + (_in_place(sent.files[sent.n_own :]) or _fetched(sent, others, pieces, folder))


def _in_place(files: Sequence[SentFile]) -> list[Path]:
    """The files at the paths that they have where they come from; [] if not all are there."""
    paths = [Path(file.path) for file in files]
    return paths if all(file.is_at(path) for file, path in zip(files, paths, strict=True)) else []


def _from_store(sent: SentModel, store: ModelStore | None) -> list[Path]:
    """The model of that name in this node's store, pulled if it can be; [] if it is another one or cannot be."""
    from edgeinfer.models.store import ModelStore

    known, files = store or ModelStore(), sent.files[: sent.n_own]
    finds: list[Callable[[str], LocalModel]] = [known.find]
    if sent.source.startswith(PULLED):
        finds.append(known.pull)
    for find in finds:
        try:
            paths = list(find(sent.source).paths)
        except (EdgeInferError, OSError, ValueError):  # no network, no room, no such name: it is sent
            continue
        if len(paths) == len(files) and all(file.is_at(path) for file, path in zip(files, paths, strict=True)):
            return paths
    return []


def weights_folder() -> Path:
    """Where fetched files are kept."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer")) / "cluster"


def _fetched(sent: SentModel, numbers: Iterable[int], pieces: Pieces, folder: Path | None) -> list[Path]:
    """Fetch files that are not in this node's folder yet; those of a model lie together under their own names."""
    together = hashlib.blake2b("".join(file.digest for file in sent.files).encode(), digest_size=8).hexdigest()
    into = (folder or weights_folder()) / together
    paths = []
    for number in numbers:
        file = sent.files[number]
        path = into / Path(file.path).name
        try:
            readable_folder(into)
            lock = FileLock(into / f".{path.name}.lock", path.name, "fetching", waiting=lambda pid: None)
            with lock:
                if not file.is_at(path):
                    _fetch(file, number, path, pieces)
        except OSError as reason:
            raise EdgeInferError(f"{path} cannot be written: {reason.strerror or reason}") from None
        paths.append(path)
    return paths


def _fetch(file: SentFile, number: int, path: Path, pieces: Pieces) -> None:
    """Fetch one file. Raises EdgeInferError for a disk without room and for what arrives damaged."""
    free = shutil.disk_usage(path.parent).free
    if free < file.nbytes:
        raise EdgeInferError(
            f"{path.parent} has {free / 1e9:.1f} GB left, and {path.name} has {file.nbytes / 1e9:.1f} GB; make room, "
            f"or put it at {file.path} on this node"
        )
    beside = temporary_path(path)
    try:
        with open(beside, "xb", opener=readably) as out:
            for piece in range(file.n_pieces):
                data, digest = pieces(number, piece)
                if _hash(data) != digest:
                    raise EdgeInferError(f"piece {piece} of {path.name} was damaged on its way; run the batch again")
                out.write(data)
        if not file.is_at(beside):
            raise EdgeInferError(f"{file.path} has changed while it was sent; run the batch again")
        put_in_place(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
