"""What a bundle file holds besides bundles: its header, a checksum of each bundle, and a table about records.

In: the contents of a model, its fingerprint, or bytes of a file. Out: the other form. Header, all little-endian: magic,
version, number of bundles; digests of the model and of the layout; bytes of data; a stamp of the source files; a 64-bit
checksum per bundle, 0 if the bundle is missing, and one of the table of records if there is one; a digest of all that.
Data begins at the next multiple of 4096, and the table follows it (`record_layers`).
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Contents
from edgeinfer.errors import BadBundle
from edgeinfer.offload.bundle import PAGE_BYTES, Key
from edgeinfer.offload.bundle_file import pack_options

WORDS = 1021
"""Words in a row of the checksum's sums. A prime, so that swapped pages land in other columns."""
WORD = np.dtype("<u8")
MAGIC, PART_MAGIC = b"edgeBNDL", b"edgePART"
VERSION = 1
"""Version of this header and of the checksums."""
LAYOUT_VERSION = 2
"""Version of the contents of panels: raised when the same weights are packed to other bytes."""
DIGEST_BYTES = 16
_FIXED = struct.Struct(f"<8sII{DIGEST_BYTES}s{DIGEST_BYTES}sQ{DIGEST_BYTES}s")
_ENTRY = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Identity:
    """What must match for a file to be used: the model, the layout of its bundles, and the amount of data.

    `table_bytes`: of the table of records behind the data; part of the layout.
    """

    model: bytes
    layout: bytes
    n_bundles: int
    data_bytes: int
    table_bytes: int = 0

    @property
    def table_offset(self) -> int:
        return _FIXED.size

    @property
    def n_entries(self) -> int:
        """Number of checksums in a whole file: one per bundle, and one of the table of records if there is one."""
        return self.n_bundles + bool(self.table_bytes)

    @property
    def checked_bytes(self) -> int:
        """Bytes that the digest covers; the digest follows them."""
        return _FIXED.size + self.n_entries * _ENTRY.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the header: where data begins."""
        return -(-(self.checked_bytes + DIGEST_BYTES) // PAGE_BYTES) * PAGE_BYTES

    @property
    def record_table_offset(self) -> int:
        """Where the table of records begins."""
        return self.nbytes + self.data_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of a whole file."""
        return self.record_table_offset + self.table_bytes


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
    table_bytes = 0 if contents.records is None else contents.records.table_bytes
    model, layout = digest(fingerprint.encode()), _layout_digest(contents)
    return Identity(model, layout, len(contents.bundles), contents.data_bytes, table_bytes)


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


def _key_line(key: Key) -> str:
    """A weight as written in files since their first version, in which the permutation had another name."""
    return repr(key).replace("RopePermutation(", "Unpair(")


def _layout_digest(contents: Contents) -> bytes:
    """A digest that changes with every size and place of matrices and bundles, and with the version of panels."""
    records = contents.records
    lines = [f"panels {LAYOUT_VERSION}", *([] if records is None else [f"an {records.table_name}"])]
    numbers = {}
    for number, (key, matrix) in enumerate(contents.matrices.items()):
        numbers[key] = number
        lines.append(f"{_key_line(key)} {matrix.heads!r} {matrix.n_panels} {matrix.panel_bytes}")
    for bundle in contents.bundles:
        parts = " ".join(f"{numbers[part.key]},{part.first},{part.n_panels},{part.offset}" for part in bundle.parts)
        run = "" if bundle.run is None else f" {bundle.run!r} {contents.layers[bundle.run.layer].line}"
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
