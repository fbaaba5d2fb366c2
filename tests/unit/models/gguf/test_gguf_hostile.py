"""Damaged and hostile files: a clear error, no crash, no large allocation."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeinfer.errors import BadGGUF, EdgeInferError
from edgeinfer.models.gguf import GGUFFile, HeaderIncomplete, parse_header

PEAK_BYTES = 2_000_000
HUGE = (2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1)


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(content: bytes, total_bytes: int | None = None) -> str:
    """The message `content` is refused with; fails if it is accepted, or allocates much."""

    def parse() -> None:
        with pytest.raises(BadGGUF) as caught:
            parse_header(content, len(content) if total_bytes is None else total_bytes, source="bad.gguf")
        messages.append(str(caught.value))
        assert not isinstance(caught.value, HeaderIncomplete)

    messages: list[str] = []
    assert peak_of(parse) < PEAK_BYTES
    assert messages[0].startswith("bad.gguf")
    assert len(messages[0]) < 500
    return messages[0]


def read_everything(content: bytes) -> None:
    header = parse_header(content, len(content))
    for key in header.metadata:
        assert header.metadata[key] is not None
    for info in header.tensors.values():
        assert 0 < info.offset <= info.offset + info.nbytes <= len(content)


def test_truncated_anywhere(small_bytes: bytes, stored: Callable[[bytes], Path]) -> None:
    for length in range(4, len(small_bytes)):
        cut = small_bytes[:length]
        # The writer pads the last tensor; only those zeros may be missing.
        if length >= len(small_bytes) - 24 and not any(small_bytes[length:]):
            continue
        assert "cut short" in refused(cut) or "claims" in refused(cut)
    with pytest.raises(BadGGUF, match=r"stored\.gguf"):
        GGUFFile.open(stored(small_bytes[:200]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"G", "cut short"),
        (b"GGUF", "cut short"),
        (b"PK\x03\x04" + bytes(100), "begins with"),
        (b"<!DOCTYPE html>" + bytes(100), "begins with b'<!DO'"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version 1; edgeinfer reads 2 and 3"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(100), "version 4"),
        (b"GGUF" + struct.pack("<I", 0) + bytes(100), "version 0"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian; use the little-endian file"),
        (b"GGUF" + struct.pack(">I", 2) + bytes(100), "big-endian"),
    ],
)
def test_not_a_readable_gguf(content: bytes, message: str) -> None:
    assert message in refused(content)


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("position", [8, 16])
def test_huge_counts(small_bytes: bytes, position: int, count: int) -> None:
    content = bytearray(small_bytes)
    struct.pack_into("<Q", content, position, count)
    assert f"claims {count}" in refused(bytes(content))
    assert f"claims {count}" in refused(bytes(content), total_bytes=2**40)


@pytest.mark.parametrize("length", HUGE)
def test_huge_lengths(build: type, length: int) -> None:
    size = struct.pack("<Q", length)
    for keys, tensors in (
        ([size + b"key"], []),
        ([build.key_value(b"k", 8, size + b"text")], []),
        ([build.key_value(b"k", 9, struct.pack("<IQ", 8, 3) + build.string(b"a") + size)], []),
        ([build.key_value(b"k", 9, struct.pack("<IQ", 8, length))], []),
        ([build.key_value(b"k", 9, struct.pack("<IQ", 9, length))], []),
        ([build.key_value(b"k", 9, struct.pack("<IQ", 5, length))], []),
        ([build.key_value(b"k", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 12, length))], []),
        ([], [size + b"name"]),
    ):
        refused(build.assemble(keys, tensors))


def test_an_array_beyond_any_vocabulary_is_refused_before_it_is_walked(build: type) -> None:
    for kind, count in ((8, 2**24 + 1), (9, 2**19)):
        content = build.assemble([build.key_value(b"k", 9, struct.pack("<IQ", kind, count))], [])
        assert "beyond what any vocabulary needs" in refused(content, total_bytes=2**40)


def test_arrays_share_one_allowance(build: type) -> None:
    arrays = [build.key_value(b"k%d" % index, 9, struct.pack("<IQ", 9, 0)) for index in range(3)]
    content = build.assemble(arrays, [])
    assert len(parse_header(content, len(content)).metadata) == 3
    inner = struct.pack("<IQ", 0, 0) * 1000
    half = struct.pack("<IQ", 9, 1000) + inner
    last = struct.pack("<IQ", 9, 2**18 - 999)
    content = build.assemble([build.key_value(b"a", 9, half), build.key_value(b"b", 9, last)], [])
    assert "'b'" in refused(content, total_bytes=2**40)


@pytest.mark.parametrize("depth", [5, 50, 5000])
def test_deep_nesting(build: type, depth: int) -> None:
    value = struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 1) + b"\x07"
    assert "nests arrays deeper than 4" in refused(build.assemble([build.key_value(b"k", 9, value)], []))


@pytest.mark.parametrize("kind", [13, 77, 2**32 - 1])
def test_unknown_value_types(build: type, kind: int) -> None:
    assert f"value type {kind}" in refused(build.assemble([build.key_value(b"k", kind, b"\0" * 8)], []))
    array = struct.pack("<IQ", kind, 0)
    assert f"value type {kind}" in refused(build.assemble([build.key_value(b"k", 9, array)], []))


@pytest.mark.parametrize("name", [b"", b"\xff\xfe", b"x" * 65_536])
def test_bad_names(build: type, name: bytes) -> None:
    assert "metadata key 0" in refused(build.assemble([build.key_value(name, 0, b"\0")], [], 2**17))
    assert "name of tensor 0" in refused(build.assemble([], [build.tensor(name, (4,))], 2**17))


def test_duplicates(build: type) -> None:
    key = build.key_value(b"k", 0, b"\0")
    assert "'k' is there twice" in refused(build.assemble([key, key], []))
    tensor = build.tensor(b"w", (4,))
    assert "'w' is there twice" in refused(build.assemble([], [tensor, tensor]))


@pytest.mark.parametrize("alignment", [0, 3, 24, 33, 2**32 - 1])
def test_bad_alignment(build: type, alignment: int) -> None:
    key = build.key_value(b"general.alignment", 4, struct.pack("<I", alignment))
    assert f"general.alignment is {alignment}" in refused(build.assemble([key], [build.tensor(b"w", (4,))]))


def test_alignment_of_another_type(build: type) -> None:
    key = build.key_value(b"general.alignment", 10, struct.pack("<Q", 32))
    assert "general.alignment has value type 10" in refused(build.assemble([key], []))


def test_alignment_beyond_the_file(build: type) -> None:
    key = build.key_value(b"general.alignment", 4, struct.pack("<I", 2**31))
    assert "cut short" in refused(build.assemble([key], [build.tensor(b"w", (4,))]))


@pytest.mark.parametrize("dimensions", [(), (4,) * 5, (1,) * 100])
def test_number_of_dimensions(build: type, dimensions: tuple[int, ...]) -> None:
    assert f"has {len(dimensions)} dimensions" in refused(build.assemble([], [build.tensor(b"w", dimensions)]))


def test_number_of_dimensions_that_would_be_read(build: type) -> None:
    entry = build.string(b"w") + struct.pack("<I", 2**32 - 1)
    assert "has 4294967295 dimensions" in refused(build.assemble([], [entry]))


@pytest.mark.parametrize("dimensions", [(0,), (32, 0), (2**63,), (2**64 - 1,), (4, 2**64 - 4)])
def test_impossible_dimensions(build: type, dimensions: tuple[int, ...]) -> None:
    assert "'w' has dimensions" in refused(build.assemble([], [build.tensor(b"w", dimensions)]))


@pytest.mark.parametrize("dimensions", [(2**62, 4), (2**32, 2**32), (2**33, 2**33, 2**33), (2**40,), (1025,)])
@pytest.mark.parametrize("kind", [0, 24])
def test_products_that_overflow_or_leave_the_file(build: type, dimensions: tuple[int, ...], kind: int) -> None:
    content = build.assemble([], [build.tensor(b"w", dimensions, kind)], 1000)
    assert "tensor 'w'" in refused(content)
    assert "cut short" in refused(content)


@pytest.mark.parametrize("offset", [4096, 2**32, 2**63, 2**64 - 32])
@pytest.mark.parametrize("kind", [0, 77])
def test_offsets_out_of_the_file(build: type, offset: int, kind: int) -> None:
    assert "cut short" in refused(build.assemble([], [build.tensor(b"w", (4,), kind, offset)]))


def test_offsets_off_the_alignment(build: type) -> None:
    assert "not a multiple of the alignment 32" in refused(build.assemble([], [build.tensor(b"w", (4,), 0, 4)]))


@pytest.mark.parametrize(("kind", "name", "size"), [(3, "Q4_1", 33), (12, "Q4_K", 288), (29, "IQ1_M", 1)])
def test_rows_that_are_not_whole_blocks(build: type, kind: int, name: str, size: int) -> None:
    assert f"is {name} with rows of {size}, not a multiple" in refused(
        build.assemble([], [build.tensor(b"w", (size, 32), kind)])
    )


def test_long_names_do_not_fill_the_message(build: type) -> None:
    refused(build.assemble([], [build.tensor(b"w" * 60_000, (4,), 0, 2**40)], 2**17))
    refused(build.assemble([build.key_value(b"k" * 60_000, 99, b"")], [], 2**17))


def test_control_characters_are_escaped_in_messages(build: type) -> None:
    message = refused(build.assemble([], [build.tensor(b"\x1b[2J\n", (4,), 0, 2**40)]))
    assert "\x1b" not in message
    assert "\n" not in message


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes(small_bytes: bytes, flips: list[tuple[int, int]]) -> None:
    content = bytearray(small_bytes)
    for position, value in flips:
        content[position % len(content)] = value

    def attempt() -> None:
        with contextlib.suppress(EdgeInferError):
            read_everything(bytes(content))

    assert peak_of(attempt) < PEAK_BYTES


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.sampled_from([0, 1, *HUGE]), st.sampled_from(["<I", "<Q"]))
def test_overwritten_numbers(small_bytes: bytes, position: int, number: int, code: str) -> None:
    content = bytearray(small_bytes)
    size = struct.calcsize(code)
    struct.pack_into(code, content, position % (len(content) - size), number % 256**size)

    def attempt() -> None:
        with contextlib.suppress(EdgeInferError):
            read_everything(bytes(content))

    assert peak_of(attempt) < PEAK_BYTES


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_after_a_good_start(tail: bytes) -> None:
    content = b"GGUF" + struct.pack("<I", 3) + tail
    with contextlib.suppress(EdgeInferError):
        read_everything(content)
