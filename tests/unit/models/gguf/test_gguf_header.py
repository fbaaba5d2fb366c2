"""The header, field by field and tensor by tensor, against the gguf package's reader."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.errors import BadGGUF
from edgeinfer.models.gguf import GGUFFile, HeaderIncomplete, MetadataValue, parse_header
from edgeinfer.models.gguf.header import GGML_TYPES, type_name

REPOSITORY = Path(__file__).resolve().parents[4]
SHARED = REPOSITORY / os.environ.get("EDGEINFER_TEST_DATA", "../shared/data")


def flat(value: MetadataValue) -> list[object]:
    """A value as the gguf package gives arrays: nested ones flattened, numbers as Python numbers."""
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    if isinstance(value, list):
        return [item for part in value for item in (flat(part) if isinstance(part, list | np.ndarray) else [part])]
    return [value]


def reference_contents(field: gguf.ReaderField) -> list[object]:
    if field.types[-1] == gguf.GGUFValueType.STRING:
        return [str(bytes(field.parts[index]), "utf-8") for index in field.data]
    return [field.parts[index].tolist()[0] for index in field.data]


def read_whole(path: Path) -> gguf.GGUFReader:
    """The gguf package's reader over a plain array: it makes one of each number, and those of a memmap take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "memmap", lambda path, mode: np.fromfile(path, np.uint8))
        return gguf.GGUFReader(path)


def assert_equal(ours: GGUFFile, reference: gguf.GGUFReader) -> None:
    fields = {name: field for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        expected = reference_contents(field)
        actual = flat(ours.metadata[name])
        assert actual == expected, name
        assert [type(item) for item in actual] == [type(item) for item in expected], name
        assert isinstance(ours.metadata[name], np.ndarray | list) == (field.types[0] == gguf.GGUFValueType.ARRAY)
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        info = ours.tensors[tensor.name]
        assert info.name == tensor.name
        assert info.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (info.ggml_type, info.type_name) == (tensor.tensor_type.value, tensor.tensor_type.name)
        assert (info.offset, info.nbytes, info.shard) == (tensor.data_offset, tensor.n_bytes, 0)
        assert ours.raw(tensor.name).tobytes() == tensor.data.tobytes()


def test_every_field_and_tensor_equals_the_gguf_package(rich_file: Path) -> None:
    reference = gguf.GGUFReader(rich_file)
    with GGUFFile.open(rich_file) as ours:
        assert_equal(ours, reference)
    header = parse_header(rich_file.read_bytes(), rich_file.stat().st_size)
    assert (header.version, header.alignment, header.data_offset) == (3, reference.alignment, reference.data_offset)


def test_version_2_reads_like_version_3(rich_file: Path) -> None:
    content = bytearray(rich_file.read_bytes())
    content[4] = 2
    rich_file.write_bytes(content)
    with GGUFFile.open(rich_file) as ours:
        assert_equal(ours, gguf.GGUFReader(rich_file))
    assert parse_header(bytes(content), len(content)).version == 2


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "llama-bpe", "qwen2"])
def test_published_vocabularies_equal_the_gguf_package(name: str) -> None:
    path = SHARED / "vocab" / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there; set EDGEINFER_TEST_DATA to the folder that holds vocab/")
    reference = read_whole(path)
    with GGUFFile.open(path) as ours:
        assert_equal(ours, reference)
        tokens = ours.metadata.raw_strings("tokenizer.ggml.tokens")
    field = reference.fields["tokenizer.ggml.tokens"]
    assert tokens == [bytes(field.parts[index]) for index in field.data]


def test_a_prefix_says_how_much_more_is_needed(small_bytes: bytes) -> None:
    whole = parse_header(small_bytes, len(small_bytes))
    needed: list[int] = []
    for length in range(len(small_bytes)):
        try:
            header = parse_header(memoryview(small_bytes)[:length], len(small_bytes))
        except HeaderIncomplete as error:
            needed.append(error.needed_bytes)
        else:
            break
    # The header ends in the padding before the data.
    assert whole.data_offset - whole.alignment < len(needed) <= whole.data_offset
    assert all(length < more <= whole.data_offset for length, more in enumerate(needed))
    assert header.tensors == whole.tensors
    assert list(header.metadata) == list(whole.metadata)


def test_fetching_what_is_needed_comes_to_an_end(rich_file: Path) -> None:
    content = rich_file.read_bytes()
    length = fetches = 0
    while True:
        try:
            header = parse_header(memoryview(content)[:length], len(content))
            break
        except HeaderIncomplete as error:
            length, fetches = error.needed_bytes, fetches + 1
    assert len(header.tensors) == len(gguf.GGUFReader(rich_file).tensors)
    assert fetches < 1000


def test_incomplete_is_a_bad_gguf_that_names_the_source(small_bytes: bytes) -> None:
    with pytest.raises(BadGGUF, match=r"model\.gguf.*only the first 100 are here"):
        parse_header(memoryview(small_bytes)[:100], len(small_bytes), source="model.gguf")


def test_the_type_table_is_that_of_the_gguf_package() -> None:
    for kind, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        row = GGML_TYPES[kind.value]
        assert (row.id, row.name, row.block_size, row.block_bytes) == (kind.value, kind.name, block_size, block_bytes)
        assert type_name(kind.value) == kind.name


def test_every_known_type_has_its_size(build: type) -> None:
    for row in GGML_TYPES.values():
        content = build.assemble([], [build.tensor(b"w", (row.block_size * 2, 3), row.id)])
        info = parse_header(content, len(content)).tensors["w"]
        assert info.shape == (3, row.block_size * 2)
        assert info.nbytes == 6 * row.block_bytes
        assert info.type_name == row.name


def test_an_unknown_type_takes_the_room_up_to_the_next_tensor(build: type) -> None:
    entries = [build.tensor(b"last", (7,), 1000, 256), build.tensor(b"a", (3,), 77), build.tensor(b"b", (2,), 0, 64)]
    content = build.assemble([], entries, 300)
    tensors = parse_header(content, len(content)).tensors
    assert [(info.type_name, info.nbytes) for info in tensors.values()] == [
        ("type 1000", 44),
        ("type 77", 64),
        ("F32", 8),
    ]


def test_tensors_may_overlap(build: type) -> None:
    content = build.assemble([], [build.tensor(b"a", (64,)), build.tensor(b"b", (64,))])
    tensors = parse_header(content, len(content)).tensors
    assert tensors["a"].offset == tensors["b"].offset


def test_a_file_may_hold_only_a_vocabulary(build: type) -> None:
    content = build.assemble([build.key_value(b"k", 8, build.string(b"v"))], [], 0).rstrip(b"\0")
    header = parse_header(content, len(content))
    assert dict(header.metadata) == {"k": "v"}
    assert not header.tensors
