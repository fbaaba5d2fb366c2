"""The header of a GGUF file: version, metadata and tensor table; and ggml's tensor types.

In: the first bytes of a file, mapped or fetched, and the size of the whole file. Out: `Header`, every number in it
checked against that size. `GGML_TYPES` covers every type that files may contain, whether or not edgeinfer can read its
weights. Does not open files or read weights. Sources: docs/gguf.md, enum ggml_type and the type traits of ggml.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf.metadata import Metadata, ValueSpan
from edgeinfer.models.gguf.values import Buffer, Cursor, HeaderIncomplete, Skipper

_MAGIC = 0x46554747  # b"GGUF"
_U32_KIND = 4
_ALIGNMENT_KEY = "general.alignment"
_DIMENSIONS_MAX = 4
_KEYS_MAX = 1 << 16
_TENSORS_MAX = 1 << 18
_LEAST_KEY_BYTES = 8 + 1 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGMLType:
    """A tensor type: a block of `block_size` weights, consecutive in a row, takes `block_bytes` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int


_TABLE = (
    GGMLType(0, "F32", 1, 4),
    GGMLType(1, "F16", 1, 2),
    GGMLType(2, "Q4_0", 32, 18),
    GGMLType(3, "Q4_1", 32, 20),
    GGMLType(6, "Q5_0", 32, 22),
    GGMLType(7, "Q5_1", 32, 24),
    GGMLType(8, "Q8_0", 32, 34),
    GGMLType(9, "Q8_1", 32, 40),
    GGMLType(10, "Q2_K", 256, 84),
    GGMLType(11, "Q3_K", 256, 110),
    GGMLType(12, "Q4_K", 256, 144),
    GGMLType(13, "Q5_K", 256, 176),
    GGMLType(14, "Q6_K", 256, 210),
    GGMLType(15, "Q8_K", 256, 292),
    GGMLType(16, "IQ2_XXS", 256, 66),
    GGMLType(17, "IQ2_XS", 256, 74),
    GGMLType(18, "IQ3_XXS", 256, 98),
    GGMLType(19, "IQ1_S", 256, 50),
    GGMLType(20, "IQ4_NL", 32, 18),
    GGMLType(21, "IQ3_S", 256, 110),
    GGMLType(22, "IQ2_S", 256, 82),
    GGMLType(23, "IQ4_XS", 256, 136),
    GGMLType(24, "I8", 1, 1),
    GGMLType(25, "I16", 1, 2),
    GGMLType(26, "I32", 1, 4),
    GGMLType(27, "I64", 1, 8),
    GGMLType(28, "F64", 1, 8),
    GGMLType(29, "IQ1_M", 256, 56),
    GGMLType(30, "BF16", 1, 2),
    # Ids 31-33 and 36-38 were rows of other formats, interleaved for one kind of CPU; ggml no longer reads them.
    GGMLType(31, "Q4_0_4_4", 32, 18),
    GGMLType(32, "Q4_0_4_8", 32, 18),
    GGMLType(33, "Q4_0_8_8", 32, 18),
    GGMLType(34, "TQ1_0", 256, 54),
    GGMLType(35, "TQ2_0", 256, 66),
    GGMLType(36, "IQ4_NL_4_4", 32, 18),
    GGMLType(37, "IQ4_NL_4_8", 32, 18),
    GGMLType(38, "IQ4_NL_8_8", 32, 18),
    GGMLType(39, "MXFP4", 32, 17),
    GGMLType(40, "NVFP4", 64, 36),
    GGMLType(41, "Q1_0", 128, 18),
    GGMLType(42, "Q2_0", 64, 18),
)

GGML_TYPES: Mapping[int, GGMLType] = MappingProxyType({row.id: row for row in _TABLE})
SCALED_TYPES = (GGMLType(-40, "NVFP4_SCALED", 256, 148), GGMLType(-41, "NVFP4_SCALED64", 64, 40))
"""Types that no file has (ids in files are not negative): NVFP4 with the scale of the matrix (`tensor_scales`)."""


def type_name(ggml_type: int) -> str:
    """ggml's name of a type id, such as 'Q4_1'; 'type 77' for an id that ggml does not have."""
    row = GGML_TYPES.get(ggml_type)
    return row.name if row is not None else f"type {ggml_type}"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor is stored: `nbytes` bytes at `offset` of the file of shard number `shard`.

    `shape` is in NumPy's order, rows first: GGUF's dimensions reversed. For a `ggml_type` unknown to ggml, `nbytes` is
    the space up to the next tensor.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    type_name: str
    offset: int
    nbytes: int
    shard: int


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of a GGUF file's first bytes; `data_offset` is where tensor data begins.

    `projector`: header of the file with which the model reads images, where both were read before a download.
    """

    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    alignment: int
    data_offset: int
    projector: Header | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    ggml_type: int
    data_offset: int


def parse_header(buffer: Buffer, total_bytes: int, source: str = "GGUF header", shard: int = 0) -> Header:
    """Parse the header at the start of `buffer`, which contains the first bytes of a file of `total_bytes`.

    `source` names the file in messages. The metadata keeps `buffer` to decode arrays from. Raises HeaderIncomplete if
    the header extends beyond `buffer`, and BadGGUF for anything a GGUF file may not contain.
    """
    cursor = Cursor(buffer, total_bytes, source)
    version = _read_version(cursor)
    tensor_count = _read_count(cursor, "tensors", _LEAST_TENSOR_BYTES, _TENSORS_MAX)
    key_count = _read_count(cursor, "metadata keys", _LEAST_KEY_BYTES, _KEYS_MAX)
    spans = _read_spans(cursor, key_count)
    alignment = _read_alignment(cursor, spans)
    entries = [_read_entry(cursor, index) for index in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = _place(cursor, entries, data_offset, alignment, total_bytes, shard)
    return Header(version, Metadata(spans, buffer, source), tensors, alignment, data_offset)


def parse_beginning(buffer: Buffer, total_bytes: int, source: str, until: str) -> Metadata:
    """The metadata before the first key that begins with `until`, or as much of it as `buffer` contains.

    For listing many files: vocabularies are most of a header and come last. Raises BadGGUF.
    """
    cursor = Cursor(buffer, total_bytes, source)
    _read_version(cursor)
    _read_count(cursor, "tensors", _LEAST_TENSOR_BYTES, _TENSORS_MAX)
    key_count = _read_count(cursor, "metadata keys", _LEAST_KEY_BYTES, _KEYS_MAX)
    spans: dict[str, ValueSpan] = {}
    with suppress(HeaderIncomplete):
        for key, span in _spans(cursor, key_count):
            if key.startswith(until):
                break
            spans[key] = span
    return Metadata(spans, buffer, source)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.u32("the magic number")
    if magic != _MAGIC:
        raise cursor.bad(f"it begins with {struct.pack('<I', magic)!r}, not b'GGUF'")
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0 and version:
        raise cursor.bad("it is big-endian; use the little-endian file")
    raise cursor.bad(f"it is GGUF version {version}; edgeinfer reads 2 and 3, so convert the model again")


def _read_count(cursor: Cursor, what: str, least_bytes: int, most: int) -> int:
    count = cursor.u64(f"the number of {what}")
    if count > most or count * least_bytes > cursor.left_bytes:
        raise cursor.bad(f"it claims {count} {what}; at most {most} are read, and the file has to hold them")
    return count


def _read_spans(cursor: Cursor, count: int) -> dict[str, ValueSpan]:
    spans: dict[str, ValueSpan] = {}
    for key, span in _spans(cursor, count):
        if key in spans:
            raise cursor.bad(f"metadata key {key[:80]!r} is there twice")
        spans[key] = span
    return spans


def _spans(cursor: Cursor, count: int) -> Iterator[tuple[str, ValueSpan]]:
    """Every key and the location of its value, in file order."""
    skipper = Skipper(cursor)
    for index in range(count):
        key = cursor.name(f"metadata key {index}")
        what = f"metadata value {key[:80]!r}"
        kind = cursor.u32(f"the type of {what}")
        start = cursor.position
        skipper.skip(kind, what)
        yield key, ValueSpan(kind, start, cursor.position)


def _read_alignment(cursor: Cursor, spans: Mapping[str, ValueSpan]) -> int:
    span = spans.get(_ALIGNMENT_KEY)
    if span is None:
        return 32
    if span.kind != _U32_KIND:
        raise cursor.bad(f"{_ALIGNMENT_KEY} has value type {span.kind}; it is a 32-bit unsigned integer (4)")
    alignment = int.from_bytes(cursor.buffer[span.start : span.stop], "little")
    if alignment.bit_count() != 1:
        raise cursor.bad(f"{_ALIGNMENT_KEY} is {alignment}; it is a power of two")
    return alignment


def _read_entry(cursor: Cursor, index: int) -> _Entry:
    name = cursor.name(f"the name of tensor {index}")
    what = f"the entry of tensor {name[:80]!r}"
    count = cursor.u32(what)
    if not 1 <= count <= _DIMENSIONS_MAX:
        raise cursor.bad(f"tensor {name[:80]!r} has {count} dimensions; tensors have 1 to {_DIMENSIONS_MAX}")
    dimensions = struct.unpack_from(f"<{count}Q", cursor.buffer, cursor.take(8 * count, what))
    if not all(0 < size < 1 << 63 for size in dimensions):
        raise cursor.bad(f"tensor {name[:80]!r} has dimensions {dimensions}; each is 1 or more, below 2**63")
    return _Entry(name, dimensions[::-1], cursor.u32(what), cursor.u64(what))


def _place(
    cursor: Cursor, entries: list[_Entry], data_offset: int, alignment: int, total_bytes: int, shard: int
) -> dict[str, TensorInfo]:
    starts = sorted({data_offset + entry.data_offset for entry in entries})
    next_start = dict(itertools.pairwise([*starts, total_bytes]))
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        label = f"tensor {entry.name[:80]!r}"
        if entry.name in tensors:
            raise cursor.bad(f"{label} is there twice")
        if entry.data_offset % alignment:
            raise cursor.bad(f"{label} is at offset {entry.data_offset}, not a multiple of the alignment {alignment}")
        start = data_offset + entry.data_offset
        nbytes = _nbytes(cursor, entry, label, next_start[start] - start)
        end = start + max(nbytes, 1)
        if end > total_bytes:
            raise BadGGUF(
                f"{cursor.source} is cut short or damaged: {label} {entry.shape} {type_name(entry.ggml_type)} would "
                f"end at byte {end}, but the file has {total_bytes}; fetch it again"
            )
        kind = type_name(entry.ggml_type)
        tensors[entry.name] = TensorInfo(entry.name, entry.shape, entry.ggml_type, kind, start, nbytes, shard)
    return tensors


def _nbytes(cursor: Cursor, entry: _Entry, label: str, room: int) -> int:
    row = GGML_TYPES.get(entry.ggml_type)
    if row is None:
        return room
    if entry.shape[-1] % row.block_size:
        raise cursor.bad(f"{label} is {row.name} with rows of {entry.shape[-1]}, not a multiple of {row.block_size}")
    return math.prod(entry.shape) // row.block_size * row.block_bytes
