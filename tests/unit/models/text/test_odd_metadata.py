"""Tokenizers of files with odd metadata: the same answers, or an error that names the key, never another exception."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Kind

from edgeinfer.errors import BadGGUF, EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import ChatTemplate, Tokenizer

PREFIX = "tokenizer.ggml."
TEXT = "the th e\n\x00 </s>x é"
Value = tuple[Any, Kind, Kind | None]
VOCABULARIES: dict[str, tuple[list[str], list[int]]] = {
    "gpt2": (["<s>", "</s>", "t", "h", "e", "Ġ", "th", "the", "Ċ", "<unk>"], [3, 3, 1, 1, 1, 1, 1, 1, 1, 2]),
    "llama": (["<unk>", "<s>", "</s>", "t", "h", "e", "▁", "th", "the", "<0x0A>"], [2, 3, 3, 1, 1, 1, 1, 1, 1, 6]),
    "t5": (["<pad>", "</s>", "<unk>", "t", "h", "e", "▁", "th", "the", "▁the"], [3, 3, 2, 1, 1, 1, 1, 1, 1, 1]),
    "bert": (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "▁t", "h", "e", "he", "a"], [3, 2, 3, 3, 1, 1, 1, 1, 1, 1]),
    "gemma4": (["<pad>", "<eos>", "<bos>", "<unk>", "t", "h", "e", "▁", "th", "the"], [3, 3, 3, 2, 1, 1, 1, 1, 1, 1]),
    "rwkv": (["<s>", "t", "h", "e", " ", "th", "the", "\\n", "\\xff", "x"], [3, *[1] * 9]),
    "plamo2": (["<unk>", "<s>", "</s>", "t", "h", "e", " ", "th", "the", "\n"], [2, 3, 3, *[1] * 7]),
    "whitespace": (["<unk>", "<s>", "</s>", "t", "h", "e", "x", "th", "the", "y"], [2, 3, 3, *[1] * 7]),
}
MERGING = ("gpt2", "gemma4", "whitespace")


def array(values: Sequence[object], kind: Kind) -> Value:
    return list(values), Kind.ARRAY, kind


def plain(kind: str) -> dict[str, Value]:
    """The metadata of a whole vocabulary, by key without its prefix."""
    tokens, types = VOCABULARIES[kind]
    values: dict[str, Value] = {
        "model": (kind, Kind.STRING, None),
        "tokens": array(tokens, Kind.STRING),
        "token_type": array(types, Kind.INT32),
        "scores": array([-float(token) for token in range(10)], Kind.FLOAT32),
    }
    if kind in MERGING:
        values["merges"] = array(["t h", "th e"], Kind.STRING)
        values["pre"] = "whitespace" if kind == "whitespace" else "gpt-2", Kind.STRING, None
    ids = {"bert": {"unknown": 1, "cls": 2, "seperator": 3}, "t5": {"unknown": 2}}.get(kind, {})
    return values | {f"{name}_token_id": (token, Kind.UINT32, None) for name, token in ids.items()}


def used(folder: Path, values: dict[str, Value]) -> list[list[int]]:
    """Ids of a text from a file with these values; everything else that a tokenizer does is done, too."""
    writer = gguf.GGUFWriter(folder / "vocabulary.gguf", "llama")
    for name, (value, kind, items) in values.items():
        writer.add_key_value(PREFIX + name, value, kind, items)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile.open(folder / "vocabulary.gguf") as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        ids = [tokenizer.encode(TEXT, add_special=False, parse_special=parse) for parse in (True, False)]
        tokenizer.decode(range(tokenizer.n_tokens))
        tokenizer.unwritable(TEXT)
        tokenizer.encode_rendered("")
        ChatTemplate.from_metadata(file.metadata, tokenizer.vocabulary)
    return ids


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_numbers_of_any_width_give_the_same_ids(kind: str, tmp_path: Path) -> None:
    expected = used(tmp_path, plain(kind))
    types, scores = plain(kind)["token_type"][0], plain(kind)["scores"][0]
    for width in (Kind.UINT8, Kind.UINT32, Kind.INT64):
        assert used(tmp_path, plain(kind) | {"token_type": array(types, width)}) == expected
    assert used(tmp_path, plain(kind) | {"scores": array(scores, Kind.FLOAT64)}) == expected
    assert used(tmp_path, plain(kind) | {"scores": array([int(score) for score in scores], Kind.INT32)}) == expected
    assert used(tmp_path, plain(kind) | {"suppress_tokens": array([1, 200], Kind.UINT8)}) == expected
    normal = array([9 if each == 1 else each for each in types], Kind.INT32)
    assert used(tmp_path, plain(kind) | {"token_type": normal}) == expected  # a type that does not exist


@pytest.mark.parametrize("kind", ["gpt2", "bert", "gemma4", "rwkv", "whitespace"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eos_token_id", (10, Kind.UINT32, None)),
        ("eos_token_id", (0xFFFFFFFF, Kind.UINT32, None)),
        ("eos_token_id", (1 << 63, Kind.UINT64, None)),
        ("bos_token_id", (-1, Kind.INT32, None)),
        ("eom_token_id", (-1, Kind.INT64, None)),
    ],
)
def test_ids_outside_the_vocabulary_change_no_ids(kind: str, name: str, value: Value, tmp_path: Path) -> None:
    assert used(tmp_path, plain(kind) | {name: value}) == used(tmp_path, plain(kind))


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_type", array([True] * 10, Kind.BOOL)),
        ("token_type", array([1.0] * 10, Kind.FLOAT32)),
        ("token_type", array(["1"] * 10, Kind.STRING)),
        ("token_type", (1, Kind.INT32, None)),
        ("token_type", array([1], Kind.INT32)),
        ("scores", array([True] * 10, Kind.BOOL)),
        ("scores", array([math.nan] * 10, Kind.FLOAT32)),
        ("scores", array([1.0], Kind.FLOAT32)),
        ("tokens", array([1, 2], Kind.INT32)),
        ("model", (3, Kind.INT32, None)),
        ("pre", (3, Kind.INT32, None)),
        ("eos_token_id", (2.0, Kind.FLOAT32, None)),
        ("eos_token_id", array([1, 2], Kind.INT32)),
        ("eom_token_id", ("x", Kind.STRING, None)),
        ("add_bos_token", (1, Kind.UINT32, None)),
        ("add_space_prefix", (1, Kind.INT8, None)),
        ("suppress_tokens", array([1.5], Kind.FLOAT32)),
        ("suppress_tokens", (3, Kind.INT32, None)),
    ],
)
def test_values_of_another_type_are_refused_by_key(kind: str, name: str, value: Value, tmp_path: Path) -> None:
    with pytest.raises(BadGGUF, match=PREFIX + name):
        used(tmp_path, plain(kind) | {name: value})


@pytest.mark.parametrize("kind", MERGING)
@pytest.mark.parametrize("merges", [["t h", "the"], ["t h", " e"], ["t h", ""], ["t h", "t h e"], ["a b"], [1, 2]])
def test_merges_of_another_form_are_refused_by_key(kind: str, merges: list[Any], tmp_path: Path) -> None:
    items = Kind.STRING if isinstance(merges[0], str) else Kind.INT32
    with pytest.raises(BadGGUF, match=r"tokenizer\.ggml\.merges"):
        used(tmp_path, plain(kind) | {"merges": array(merges, items)})


@pytest.mark.parametrize("kind", MERGING)
def test_a_repeated_merge_keeps_the_ids(kind: str, tmp_path: Path) -> None:
    merges = array(["t h", "th e", "t h"], Kind.STRING)
    assert used(tmp_path, plain(kind) | {"merges": merges}) == used(tmp_path, plain(kind))


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("token", ["", "t", "\x00", " ", b"\xff\xfe", "\ufffd", "[EMPTY_9]", "\\", "<0x41>"])
@pytest.mark.parametrize("type_of_all", [None, 3, 5, 6])
def test_odd_tokens_are_read_or_refused(kind: str, token: str | bytes, type_of_all: int | None, tmp_path: Path) -> None:
    values = plain(kind)
    values["tokens"] = array([*values["tokens"][0][:9], token], Kind.STRING)
    if type_of_all is not None:
        values["token_type"] = array([type_of_all] * 10, Kind.INT32)
    for scores in (values["scores"][0], [math.inf] * 10, [-math.inf] * 10, [3e38, -3e38] * 5, [0.0] * 10):
        refused = ""
        try:
            used(tmp_path, values | {"scores": array(scores, Kind.FLOAT32)})
        except EdgeInferError as error:
            refused = str(error)
        assert not refused or PREFIX in refused or "the vocabulary has no token for" in refused


def test_no_newline_in_the_vocabulary(tmp_path: Path) -> None:
    values = plain("gpt2")
    values["tokens"] = array(["x" if token == "Ċ" else token for token in values["tokens"][0]], Kind.STRING)
    assert used(tmp_path, values) == [[7, 5, 6, 5, 4, 5, 1, 8, 5], [7, 5, 6, 5, 4, 5, 8, 5]]
