"""llama.cpp cuts texts into the tokens that edgeinfer makes, where a converter's name or its own code says how."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.golden.goldens import DATA

FILES = {"afmoe": DATA / "converted" / "afmoe-bf16.gguf"}
TEXTS = (
    *("1", "12", "1234", "abc12 1234567 x 12345678", "  123", "\n\n4567", "tab\t99", "a 1b2c3333", "3.14159, (2024)"),
    *("12東京3456ไทย 789", "½ ²34 12²", "١٢٣٤٥", "don't 'tis it's", "naïve 東京 😀", "the cat  \n sat"),
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ("the", "th", "he", "▁", "▁the", "t", "h", "e", "a", "é", "\n", "東", "the the", "ea", "éa", "'", '"', "\\")


def _begin(path: Path, kind: str, tokens: list[str], types: list[int]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    return writer


def _end(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rwkv(path: Path) -> None:
    pieces = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS)])
    tokens = ["<s>", *(repr(piece)[2:-1] for piece in pieces)]
    writer = _begin(path, "rwkv", tokens, [3] + [1] * len(pieces))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    _end(writer)


def _plamo(path: Path) -> None:
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    writer = _begin(path, "plamo2", [*special, *BYTES, *WORDS], [2, 3, 3, 3] + [6] * 256 + [1] * len(WORDS))
    draw = random.Random(1)
    scores = [0.0, 0.0, 0.0, 0.0] + [0.0] * 256 + [draw.uniform(-9, -1) for _ in WORDS]
    writer.add_token_scores(scores)
    _end(writer)


def _gemma(path: Path) -> None:
    merges = ["t h", "h e", "t he", "th e", "▁ the", "e a", "é a", "\n \n"]
    made = [merge.replace(" ", "") for merge in merges]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, *dict.fromkeys([*(w for w in WORDS if " " not in w), *made])]
    writer = _begin(path, "gemma4", tokens, [3, 3, 3, 3] + [6] * 256 + [1] * (len(tokens) - 260))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    _end(writer)


def _added(path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, "▁", "▁t", "th", "the", "▁the", "a", "<|x|>", "<y>"]
    writer = _begin(path, "llama", tokens, [2, 3, 3] + [6] * 256 + [1] * 6 + [3, 4])
    writer.add_token_scores([0.0] * 3 + [0.0] * 256 + [-float(rank) for rank in range(6)] + [-1000.0, -1000.0])
    _end(writer)


def _compare(path: Path, texts: list[str]) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        with GGUFFile.open(path) as file:
            tokenizer = Tokenizer.from_metadata(file.metadata)
            for text in texts:
                expected = peer.tokenize(text.encode(), add_bos=False, special=False)
                assert tokenizer.encode(text, add_special=False) == expected, text
    finally:
        peer.close()


@pytest.mark.peer
@pytest.mark.parametrize("name", FILES)
def test_llama_cpp_cuts_the_same_tokens(name: str) -> None:
    _compare(FILES[name], list(TEXTS))


@pytest.mark.peer
@pytest.mark.parametrize("write", [_rwkv, _plamo, _gemma, _added])
def test_llama_cpp_agrees_on_kinds_of_few_models(write: Callable[[Path], None], tmp_path: Path) -> None:
    draw = random.Random(3)
    letters = ["<y>", "the", " the", "ea", *"the aé東\n'\"\\x"]
    drawn = ["".join(draw.choices(letters, k=draw.randrange(1, 30))) for _ in range(200)]
    write(tmp_path / "vocabulary.gguf")
    _compare(tmp_path / "vocabulary.gguf", [*TEXTS, *drawn])


GAP_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-repo>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|fim_repo|>"),
    ("<PRE>", "<SUF>", "<MID>", "<REPO>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
    ("<|fim_prefix|>", "<|fim_middle|>"),
)


@pytest.mark.peer
@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("marks", GAP_MARKS, ids=lambda marks: marks[0])
def test_llama_cpp_agrees_on_the_tokens_around_a_gap(marks: tuple[str, ...], kind: int, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    path = tmp_path / "gap.gguf"
    writer = _begin(path, "gpt2", ["a", "b", "ab", *marks], [1, 1, 1, *(kind for _ in marks)])
    writer.add_token_merges(["a b"])
    _end(writer)
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        vocabulary = llama_cpp.llama_model_get_vocab(peer.model)
        asked = (
            getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocabulary) for name in ("pre", "suf", "mid", "rep", "sep")
        )
        expected = tuple(None if token < 0 else token for token in asked)
    finally:
        peer.close()
    with GGUFFile.open(path) as file:
        assert Tokenizer.from_metadata(file.metadata).vocabulary.gap == expected
