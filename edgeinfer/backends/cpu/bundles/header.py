"""What a bundle file holds besides bundles: its header, a checksum of each bundle, and the order of neurons.

In: the contents of a model, its fingerprint and permutations, or bytes of a file. Out: the other form; data that is no
permutation is refused. Header, all little-endian: magic, version, number of bundles; digests of the model and of the
layout; bytes of data; a stamp of the source files; a 64-bit checksum per bundle, 0 if the bundle is missing, and one of
the order of neurons if there is one; a digest of all that. Data begins at the next multiple of 4096, and the order
follows it: a permutation of each sparse layer's neurons, which changes only where they lie, not their numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.backends.cpu.lowering.fusion import SparseLayer
from edgeinfer.errors import BadBundle
from edgeinfer.graph.step import Int32s
from edgeinfer.offload.bundle import PAGE_BYTES, Key
from edgeinfer.offload.bundle_file import pack_options
from edgeinfer.offload.neuron_reads import LayerRuns

WORDS = 1021
"""Words in a row of the checksum's sums. A prime, so that swapped pages land in other columns."""
WORD = np.dtype("<u8")
MAGIC, PART_MAGIC = b"edgeBNDL", b"edgePART"
VERSION = 1
"""Version of this header and of the checksums."""
LAYOUT_VERSION = 2
"""Version of the contents of panels: raised when the same weights are packed to other bytes."""
DIGEST_BYTES = 16
NEURON_BYTES = 4
"""Bytes of a neuron's number in the order."""
_FIXED = struct.Struct(f"<8sII{DIGEST_BYTES}s{DIGEST_BYTES}sQ{DIGEST_BYTES}s")
_ENTRY = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Identity:
    """What must match for a file to be used: the model, the layout of its bundles, and the amount of data.

    `n_neurons`: total of all sparse layers, whose order the file holds; part of the layout.
    """

    model: bytes
    layout: bytes
    n_bundles: int
    data_bytes: int
    n_neurons: int = 0

    @property
    def table_offset(self) -> int:
        return _FIXED.size

    @property
    def n_entries(self) -> int:
        """Number of checksums in a whole file: one per bundle, and one of the order of neurons if there is one."""
        return self.n_bundles + bool(self.n_neurons)

    @property
    def checked_bytes(self) -> int:
        """Bytes that the digest covers; the digest follows them."""
        return _FIXED.size + self.n_entries * _ENTRY.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the header: where data begins."""
        return -(-(self.checked_bytes + DIGEST_BYTES) // PAGE_BYTES) * PAGE_BYTES

    @property
    def order_offset(self) -> int:
        """Where the order of neurons begins."""
        return self.nbytes + self.data_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of a whole file."""
        return self.order_offset + NEURON_BYTES * self.n_neurons


@dataclass(frozen=True, slots=True)
class PartHeader:
    """The header of a half-written file: a stamp of its source files, and checksums of the bundles present."""

    stamp: bytes
    checksums: NDArray[np.uint64] = field(compare=False)


def repair(path: Path) -> str:
    """How to make a file usable again, for messages."""
    return f"edgeinfer pack MODEL --repair{pack_options(path)} makes it anew"


def identity_of(contents: Contents, fingerprint: str) -> Identity:
    """The identity that a file of these contents, of the model with this fingerprint, must have."""
    n_neurons = sum(layer.layout.n_neurons for layer in contents.layers)
    model, layout = digest(fingerprint.encode()), _layout_digest(contents)
    return Identity(model, layout, len(contents.bundles), contents.data_bytes, n_neurons)


def digest(data: bytes) -> bytes:
    """A short digest."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def header_of(identity: Identity, stamp: bytes, checksums: NDArray[np.uint64]) -> bytes:
    """The header of a whole file, `identity.nbytes` long. checksums: uint64[n_entries]."""
    start = _start(identity, MAGIC, stamp) + checksums.astype(_ENTRY).tobytes()
    return (start + digest(start)).ljust(identity.nbytes, b"\0")


def part_header_of(identity: Identity, stamp: bytes) -> bytes:
    """The header of a file that has no bundle yet."""
    return _start(identity, PART_MAGIC, stamp).ljust(identity.nbytes, b"\0")


def table_entry(identity: Identity, number: int, value: int) -> tuple[int, bytes]:
    """Where the checksum of a bundle is written, and its bytes."""
    return identity.table_offset + number * _ENTRY.itemsize, value.to_bytes(_ENTRY.itemsize, "little")


def is_bundle_file(path: Path) -> bool:
    """Whether a file begins like a bundle file, whole or half-written."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) in (MAGIC, PART_MAGIC)
    except OSError:
        return False


def checksums_in(path: Path, header: bytes, file_bytes: int, identity: Identity) -> NDArray[np.uint64]:
    """The checksums uint64[n_entries] of a whole file that begins with `header`. Raises BadBundle for any other."""
    _check_start(path, header, identity)
    end = identity.checked_bytes
    if header[end : end + DIGEST_BYTES] != digest(header[:end]):
        raise BadBundle(f"{path}: its table of checksums is damaged; {repair(path)}")
    if file_bytes != identity.file_bytes:
        raise BadBundle(f"{path} has {file_bytes} bytes, not {identity.file_bytes}: it is cut short; {repair(path)}")
    return np.frombuffer(header, _ENTRY, identity.n_entries, identity.table_offset).astype(np.uint64)


def part_header(header: bytes, identity: Identity) -> PartHeader | None:
    """The table in the header of a half-written file; None if the file does not have this identity.

    A header of a whole file is accepted: packing was then stopped just before the file got its name.
    """
    if len(header) < identity.nbytes:
        return None
    magic, version, n_bundles, model, layout, data_bytes, stamp = _FIXED.unpack_from(header)
    if (
        magic not in (PART_MAGIC, MAGIC)
        or version != VERSION
        or (model, layout, n_bundles, data_bytes)
        != (identity.model, identity.layout, identity.n_bundles, identity.data_bytes)
    ):
        return None
    table = np.frombuffer(header, _ENTRY, identity.n_bundles, identity.table_offset)
    return PartHeader(stamp, table.astype(np.uint64))


def _start(identity: Identity, magic: bytes, stamp: bytes) -> bytes:
    return _FIXED.pack(magic, VERSION, identity.n_bundles, identity.model, identity.layout, identity.data_bytes, stamp)


def _check_start(path: Path, header: bytes, identity: Identity) -> None:
    """Raise BadBundle unless a whole file of this identity begins so."""
    if header[: len(PART_MAGIC)] == PART_MAGIC:
        raise BadBundle(f"{path} is half-written; edgeinfer pack MODEL{pack_options(path)} goes on with it")
    if header[: len(MAGIC)] != MAGIC:
        raise BadBundle(f"{path} is not a bundle file; edgeinfer pack MODEL --out FILE writes one to another place")
    if len(header) < _FIXED.size:
        raise BadBundle(f"{path} has {len(header)} bytes: it is cut short; {repair(path)}")
    _, version, n_bundles, model, layout, data_bytes, _ = _FIXED.unpack_from(header)
    if version != VERSION:
        raise BadBundle(f"{path} is a bundle file of version {version}, this edgeinfer reads {VERSION}; {repair(path)}")
    if model != identity.model:
        raise BadBundle(f"{path} holds another model, or an older state of this one; {repair(path)}")
    if (layout, n_bundles, data_bytes) != (identity.layout, identity.n_bundles, identity.data_bytes):
        raise BadBundle(f"{path} was packed by an edgeinfer that lays panels out in another way; {repair(path)}")
    if len(header) < identity.nbytes:
        raise BadBundle(f"{path} has {len(header)} bytes: it is cut short; {repair(path)}")


def _layer_line(layer: SparseLayer) -> str:
    """What the records of a layer's neurons are made from, regardless of why a neuron counts as inactive."""
    return f"{layer.place} {layer.weights!r} {layer.layout!r}"


def _key_line(key: Key) -> str:
    """A weight as written in files since their first version, in which the permutation had another name."""
    return repr(key).replace("RopePermutation(", "Unpair(")


def _layout_digest(contents: Contents) -> bytes:
    """A digest that changes with every size and place of matrices and bundles, and with the version of panels."""
    lines = [f"panels {LAYOUT_VERSION}", *(["an order of neurons"] if contents.layers else [])]
    numbers = {}
    for number, (key, matrix) in enumerate(contents.matrices.items()):
        numbers[key] = number
        lines.append(f"{_key_line(key)} {matrix.heads!r} {matrix.n_panels} {matrix.panel_bytes}")
    for bundle in contents.bundles:
        parts = " ".join(f"{numbers[part.key]},{part.first},{part.n_panels},{part.offset}" for part in bundle.parts)
        run = "" if bundle.run is None else f" {bundle.run!r} {_layer_line(contents.layers[bundle.run.layer])}"
        lines.append(f"{bundle.offset} {bundle.nbytes} {parts}{run}")
    return digest("\n".join(lines).encode())


def checksum(data: NDArray[np.uint8]) -> int:
    """The checksum of uint8[n], contiguous: 1 to 2**64 - 1.

    Column sums of 64-bit words, and a hash of the sums: changing any single word changes it. It detects disk errors,
    not forgeries; it costs little beside reading, as it runs at the speed of memory and releases the interpreter lock.
    """
    n_words = len(data) // WORD.itemsize
    n_rows, n_rest = divmod(n_words, WORDS)
    words = data[: n_words * WORD.itemsize].view(WORD)
    sums = np.add.reduce(words[: n_rows * WORDS].reshape(n_rows, WORDS), axis=0, dtype=WORD)
    sums[:n_rest] += words[n_rows * WORDS :]
    digest = hashlib.blake2b(sums, digest_size=8, salt=len(data).to_bytes(8, "little"))
    digest.update(data[n_words * WORD.itemsize :].tobytes())
    return int.from_bytes(digest.digest(), "little") or 1


Orders = tuple[Int32s, ...]
"""For each sparse layer the neuron at each position, int32[n_neurons]."""
_NUMBER = np.dtype("<i4")


def natural(contents: Contents) -> Orders:
    """The order in which every neuron is at the position of its number."""
    return tuple(np.arange(layer.layout.n_neurons, dtype=np.int32) for layer in contents.layers)


def positions_of(order: Int32s) -> NDArray[np.int64]:
    """The position of each neuron: int64[n_neurons]."""
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order))
    return found


def order_bytes(orders: Sequence[Int32s]) -> NDArray[np.uint8]:
    """The bytes that a file holds: uint8[4 * all neurons]."""
    parts = [order.astype(_NUMBER).view(np.uint8) for order in orders]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def orders_in(path: Path, data: NDArray[np.uint8], contents: Contents) -> Orders:
    """The inverse of `order_bytes`, checked. Raises BadBundle unless each layer has a permutation of its neurons."""
    numbers, found, first = data.view(_NUMBER).astype(np.int32), list[Int32s](), 0
    for layer in contents.layers:
        order = numbers[first : first + layer.layout.n_neurons]
        if not np.array_equal(np.sort(order), np.arange(layer.layout.n_neurons)):
            raise BadBundle(f"{path}: its order of neurons is none, as some are missing or there twice; {repair(path)}")
        found.append(order)
        first += layer.layout.n_neurons
    return tuple(found)


def runs_of(contents: Contents, orders: Orders = ()) -> list[LayerRuns]:
    """The neurons of each sparse layer as runs of records, in the order of a file or in that of their numbers."""
    layouts = (layer.layout for layer in contents.layers)
    positions = map(positions_of, orders) if orders else [None] * len(contents.layers)
    return [
        LayerRuns(layout.record_bytes, layout.n_neurons, tuple(contents.runs(number)), lie)
        for number, (layout, lie) in enumerate(zip(layouts, positions, strict=True))
    ]
