"""Typed getters, lazy arrays, odd strings."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import BadGGUF, EngineClosed
from edgeinfer.models.gguf import GGUFFile, Metadata, parse_header


@pytest.fixture
def metadata(rich_file: Path) -> Metadata:
    content = rich_file.read_bytes()
    return parse_header(content, len(content), source="rich.gguf").metadata


def test_getters_give_values_of_their_type(metadata: Metadata) -> None:
    assert metadata.text("general.architecture") == "llama"
    assert metadata.integer("test.u64") == 2**64 - 1
    assert metadata.integer("test.i8") == -100
    assert metadata.number("test.f64") == 0.1
    assert metadata.number("test.f32") == float(np.float32(0.1))
    number = metadata.number("test.u8")
    assert (number, type(number)) == (200.0, float)
    assert metadata.flag("test.yes") is True
    assert metadata.flag("test.no") is False
    assert metadata.strings("test.strings") == ["", "a", "日本", "Ġthe"]
    assert metadata.raw_strings("test.strings") == [b"", b"a", "日本".encode(), "Ġthe".encode()]
    assert metadata.numbers("test.ints").tolist() == [1, -2, 3]
    assert metadata.numbers("test.bools").dtype == np.bool_


@pytest.mark.parametrize(
    ("key", "dtype"),
    [
        ("u8", np.uint8),
        ("i8", np.int8),
        ("u16", np.uint16),
        ("i16", np.int16),
        ("u32", np.uint32),
        ("u64", np.uint64),
        ("i64", np.int64),
        ("f64", np.float64),
    ],
)
def test_number_arrays_keep_their_type(metadata: Metadata, key: str, dtype: type) -> None:
    numbers = metadata.numbers(f"test.array_{key}")
    assert numbers.dtype == dtype
    assert numbers.dtype.isnative
    assert numbers.flags.aligned
    assert not numbers.flags.writeable


def test_nested_arrays_are_lists(metadata: Metadata) -> None:
    nested = metadata["test.nested"]
    assert isinstance(nested, list)
    assert [part.tolist() for part in nested] == [[1, 2, 3], [4], [5, 6]]
    assert metadata["test.nested_strings"] == [["a", "bc"], ["d"]]
    deep = metadata["test.deep"]
    assert isinstance(deep, list)
    assert [[part.tolist() for part in row] for row in deep] == [[[1.0], [2.0, 3.0]], [[4.0]]]


def test_defaults_stand_in_for_missing_keys_only(metadata: Metadata) -> None:
    assert metadata.text("missing", default="x") == "x"
    assert metadata.text("missing", None) is None
    assert metadata.integer("missing", 7) == 7
    assert metadata.number("missing", 0.5) == 0.5
    assert metadata.flag("missing", False) is False
    with pytest.raises(BadGGUF, match="u8"):
        metadata.text("test.u8", "x")


@pytest.mark.parametrize("getter", ["text", "integer", "number", "flag", "strings", "numbers", "raw_strings"])
def test_a_missing_key_is_named(metadata: Metadata, getter: str) -> None:
    with pytest.raises(BadGGUF, match=r"rich\.gguf has no metadata key 'llama\.block_count'"):
        getattr(metadata, getter)("llama.block_count")


@pytest.mark.parametrize(
    ("getter", "key"),
    [
        ("text", "u8"),
        ("text", "strings"),
        ("integer", "f32"),
        ("integer", "yes"),
        ("integer", "text"),
        ("number", "text"),
        ("number", "no"),
        ("flag", "u8"),
        ("strings", "ints"),
        ("strings", "text"),
        ("strings", "nested_strings"),
        ("raw_strings", "floats"),
        ("numbers", "strings"),
        ("numbers", "u8"),
        ("numbers", "nested"),
    ],
)
def test_a_wrong_type_is_named(metadata: Metadata, getter: str, key: str) -> None:
    with pytest.raises(BadGGUF, match=rf"rich\.gguf: metadata key 'test\.{key}' should be .*, but is "):
        getattr(metadata, getter)(f"test.{key}")


def test_it_is_a_mapping(metadata: Metadata) -> None:
    assert "test.u8" in metadata
    assert "nothing" not in metadata
    assert len(metadata) == len(list(metadata)) > 20
    assert metadata.get("nothing") is None
    with pytest.raises(KeyError):
        metadata["nothing"]


def test_strings_that_are_not_utf8_are_shown_and_kept(build: type) -> None:
    strings = [b"fine", b"\xff\xfe", "é".encode()[:1], "é".encode()]
    array = struct.pack("<IQ", 8, len(strings)) + b"".join(build.string(text) for text in strings)
    keys = [build.key_value(b"tokens", 9, array), build.key_value(b"name", 8, build.string(b"a\xffb"))]
    content = build.assemble(keys, [])
    metadata = parse_header(content, len(content)).metadata
    assert metadata.strings("tokens") == ["fine", "\ufffd\ufffd", "\ufffd", "é"]
    assert metadata.raw_strings("tokens") == strings
    assert metadata.text("name") == "a\ufffdb"


@pytest.mark.parametrize("kind", [*range(8), 10, 11, 12])
def test_empty_arrays(build: type, kind: int) -> None:
    keys = [build.key_value(b"empty", 9, struct.pack("<IQ", kind, 0)), build.key_value(b"after", 0, b"\x05")]
    content = build.assemble(keys, [])
    metadata = parse_header(content, len(content)).metadata
    assert metadata.numbers("empty").size == 0
    assert metadata.integer("after") == 5


@pytest.mark.parametrize("kind", [8, 9])
def test_empty_lists(build: type, kind: int) -> None:
    content = build.assemble([build.key_value(b"empty", 9, struct.pack("<IQ", kind, 0))], [])
    assert parse_header(content, len(content)).metadata["empty"] == []


def test_any_byte_but_zero_is_true(build: type) -> None:
    keys = [build.key_value(b"a", 7, b"\x02"), build.key_value(b"b", 9, struct.pack("<IQ", 7, 3) + b"\x00\x01\x80")]
    content = build.assemble(keys, [])
    metadata = parse_header(content, len(content)).metadata
    assert metadata.flag("a") is True
    assert metadata.numbers("b").tolist() == [False, True, True]


def test_arrays_are_decoded_once_until_released(metadata: Metadata) -> None:
    first = metadata.strings("test.strings")
    assert metadata.strings("test.strings") is first
    metadata.release()
    assert metadata.strings("test.strings") == first
    assert metadata.strings("test.strings") is not first


def test_after_close_small_values_stay_and_unread_arrays_say_so(
    small_bytes: bytes, stored: Callable[[bytes], Path]
) -> None:
    with GGUFFile.open(stored(small_bytes)) as file:
        tokens = file.metadata.strings("tokenizer.ggml.tokens")
    assert file.metadata.integer("llama.block_count") == 2
    assert file.metadata.text("general.architecture") == "llama"
    assert file.metadata.strings("tokenizer.ggml.tokens") == tokens
    with pytest.raises(EngineClosed, match=r"stored\.gguf is closed; read tokenizer\.ggml\.scores before"):
        file.metadata.numbers("tokenizer.ggml.scores")
