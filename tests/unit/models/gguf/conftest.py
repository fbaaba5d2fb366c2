"""GGUF files written by the gguf package, and byte strings to damage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

SCALARS = {
    "u8": ("add_uint8", 200),
    "i8": ("add_int8", -100),
    "u16": ("add_uint16", 60_000),
    "i16": ("add_int16", -30_000),
    "u32": ("add_uint32", 4_000_000_000),
    "i32": ("add_int32", -2_000_000_000),
    "f32": ("add_float32", 0.1),
    "u64": ("add_uint64", 2**64 - 1),
    "i64": ("add_int64", -(2**63)),
    "f64": ("add_float64", 0.1),
    "yes": ("add_bool", True),
    "no": ("add_bool", False),
    "text": ("add_string", "naïve 日本 🦙\n"),
    "long": ("add_string", "a" * 70_000),
}

ARRAYS = {
    "strings": ["", "a", "日本", "Ġthe"],
    "ints": [1, -2, 3],
    "floats": [0.5, -1.25, 3e38],
    "bools": [True, False, True],
    "bytes": b"\x00\xff\x80",
    "nested": [[1, 2, 3], [4], [5, 6]],
    "nested_strings": [["a", "bc"], ["d"]],
    "deep": [[[1.0], [2.0, 3.0]], [[4.0]]],
}

TYPED_ARRAYS = {
    "array_u8": (gguf.GGUFValueType.UINT8, [0, 255]),
    "array_i8": (gguf.GGUFValueType.INT8, [-128, 127]),
    "array_u16": (gguf.GGUFValueType.UINT16, [0, 65_535]),
    "array_i16": (gguf.GGUFValueType.INT16, [-32_768, 32_767]),
    "array_u32": (gguf.GGUFValueType.UINT32, [0, 2**32 - 1]),
    "array_u64": (gguf.GGUFValueType.UINT64, [0, 2**64 - 1]),
    "array_i64": (gguf.GGUFValueType.INT64, [-(2**63), 2**63 - 1]),
    "array_f64": (gguf.GGUFValueType.FLOAT64, [0.1, -1e300]),
}


def fill(writer: gguf.GGUFWriter) -> None:
    """Every metadata type, and tensors of 1 to 4 dimensions in several formats."""
    for key, (method, value) in SCALARS.items():
        getattr(writer, method)(f"test.{key}", value)
    for key, values in ARRAYS.items():
        writer.add_array(f"test.{key}", values)
    for key, (kind, values) in TYPED_ARRAYS.items():
        writer.add_key_value(f"test.{key}", values, gguf.GGUFValueType.ARRAY, sub_type=kind)
    rng = np.random.default_rng(7)
    writer.add_tensor("vector", rng.standard_normal(33).astype(np.float32))
    writer.add_tensor("matrix", rng.standard_normal((3, 64)).astype(np.float16))
    writer.add_tensor("cube", rng.standard_normal((2, 3, 5)).astype(np.float32))
    writer.add_tensor("experts", rng.standard_normal((2, 3, 4, 32)).astype(np.float32))
    writer.add_tensor("naïve.weight", rng.integers(-9, 9, (4, 4), dtype=np.int8))
    for kind in (gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q6_K, gguf.GGMLQuantizationType.IQ1_M):
        block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
        raw = rng.integers(0, 256, (5, 2 * block_bytes), dtype=np.uint8)
        writer.add_tensor(f"blk.0.{kind.name}", raw, raw_dtype=kind)


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(params=[None, 8, 256], ids=["default", "align8", "align256"])
def rich_file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with everything the gguf package can write, at several alignments."""
    path = tmp_path / "rich.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if request.param is not None:
        writer.add_custom_alignment(request.param)
    fill(writer)
    write(writer)
    return path


@pytest.fixture(scope="session")
def small_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small whole file: scalars, arrays of both kinds, two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(32)
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "Ġa", "日本"])
    writer.add_array("tokenizer.ggml.scores", [0.0, -1.0, -2.0, -3.0])
    writer.add_array("test.nested", [[1, 2], [3]])
    writer.add_tensor("token_embd.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    raw = np.arange(40, dtype=np.uint8).reshape(2, 20)
    writer.add_tensor("output.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    write(writer)
    return path.read_bytes()


@pytest.fixture
def split_files(tmp_path: Path) -> list[Path]:
    """The same content in shards of three tensors."""
    writer = gguf.GGUFWriter(tmp_path / "split.gguf", "llama", split_max_tensors=3)
    fill(writer)
    write(writer)
    return sorted(tmp_path.glob("split-*.gguf"))


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def key_value(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(name: bytes, dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return string(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, offset)


def assemble(keys: list[bytes], tensors: list[bytes], data_bytes: int = 4096, version: int = 3) -> bytes:
    """A file of ready-made entries, padded, with zeros as data."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + bytes(-len(head) % 32 + data_bytes)


class Builder:
    """The byte builders above, for tests that need files no writer makes."""

    string = staticmethod(string)
    key_value = staticmethod(key_value)
    tensor = staticmethod(tensor)
    assemble = staticmethod(assemble)


@pytest.fixture(scope="session")
def build() -> type[Builder]:
    return Builder


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write bytes to a file and give its path."""

    def store(content: bytes) -> Path:
        path = tmp_path / "stored.gguf"
        path.write_bytes(content)
        return path

    return store
