"""SentencePiece BPE against the `sentencepiece` package, live where it is installed and from recorded ids elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.text import Tokenizer, TokenType
from tests.unit.models.text.small_vocabularies import DATA, gguf_metadata

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
# As Gemma has them: runs of newlines and spaces that stand for themselves, and no space before the text.
RUNS = ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<ud>"]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "no prefix": {"add_dummy_prefix": False},
    "gemma": {"add_dummy_prefix": False, "user_defined_symbols": RUNS},
    "user defined": {"user_defined_symbols": ["<ud>", "quick", "ö"]},
    "across words": {"split_by_whitespace": False, "vocab_size": 700},
    "no bytes": {"byte_fallback": False, "character_coverage": 0.98},
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_text_equal_sentencepiece(
    kind: str, texts: list[str], train_sentencepiece: Callable[..., SimpleNamespace]
) -> None:
    trained = train_sentencepiece(**KINDS[kind])
    tokenizer = Tokenizer.from_metadata(trained.metadata)
    for text in (*texts, "<ud>", "a<ud> b", "  <ud>  quick", "\n\n\n\n"):
        if kind == "gemma":
            text = text.replace("▁", "_")
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == trained.judge.encode(text), text
        if kind != "no bytes" and "▁" not in text:
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["llama", "gemma", "across words"])
def test_ids_equal_on_any_unicode(kind: str, train_sentencepiece: Callable[..., SimpleNamespace]) -> None:
    trained = train_sentencepiece(**KINDS[kind])
    tokenizer = Tokenizer.from_metadata(trained.metadata)

    @given(UNICODE.filter(lambda text: "▁" not in text) | st.text("abelo \n", max_size=60))
    def equal(text: str) -> None:
        assert tokenizer.encode(text, add_special=False, parse_special=False) == trained.judge.encode(text)

    equal()


def test_recorded_ids() -> None:
    recorded = json.loads((DATA / "sentencepiece.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_metadata(gguf_metadata("llama", **recorded["vocabulary"]))
    for text, ids in recorded["cases"]:
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, text
        assert tokenizer.decode(ids) == text


def test_defaults_of_a_sentencepiece_vocabulary() -> None:
    tokenizer = _tokenizer(["<unk>", "<s>", "</s>", "▁", "a", "▁a"], [2, 3, 3, 1, 1, 1], [0, 0, 0, -2, -3, -1])
    assert tokenizer.encode("a") == [1, 5]
    assert tokenizer.vocabulary.eos_id == 2
    assert tokenizer.vocabulary.unk_id == 0
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("a</s>a") == [1, 5, 2, 5]
    assert tokenizer.decode([1, 5, 2, 5], skip_special=True) == "aa"
    assert tokenizer.decode([5, 5]) == "a a"


def test_control_and_byte_tokens_cannot_be_spelled_out() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<0x61>", "<", "/", "s", ">", "</", "s>", "0", "x", "6", "1", "▁"]
    types = [2, 3, 3, 6] + [1] * 11
    tokenizer = _tokenizer(tokens, types, [0, 0, 0, 0] + [-1] * 11, add_space_prefix=False)
    assert tokenizer.encode("</s>", add_special=False, parse_special=False) == [8, 9]
    assert tokenizer.encode("</s>", add_special=False) == [2]
    assert tokenizer.encode("<0x61>", add_special=False) == [4, 10, 11, 12, 13, 7]
    assert tokenizer.piece(3) == b"a"


def test_equal_scores_join_from_the_left() -> None:
    tokenizer = _tokenizer(["<unk>", "a", "b", "ab", "ba"], [2, 1, 1, 1, 1], [0, -9, -9, -1, -1], False)
    assert tokenizer.encode("aba", add_special=False) == [3, 1]
    assert tokenizer.encode("bab", add_special=False) == [4, 2]


def test_text_that_goes_on_has_no_space_put_before_it() -> None:
    tokenizer = _tokenizer(["<unk>", "<s>", "</s>", "▁", "▁a", "a"], [2, 3, 3, 1, 1, 1], [0, 0, 0, -3, -1, -2])
    assert tokenizer.encode("a a", add_special=False) == [4, 4]
    assert tokenizer.encode("a a", add_special=False, goes_on=True) == [5, 4]
    assert tokenizer.encode("a</s>a", add_special=False, goes_on=True) == [5, 2, 4]


def test_text_begins_anew_after_tokens_that_were_added_later() -> None:
    """As llama.cpp and the models' own tokenizers have it; those that SentencePiece was trained with are text."""
    tokens, types = ["<unk>", "<s>", "</s>", "▁", "▁a", "a", "<x>", "<y>"], [2, 3, 3, 1, 1, 1, 4, 4]
    tokenizer = _tokenizer(tokens, types, [0, 0, 0, -3, -1, -2, 0, -1000])
    assert tokenizer.encode("<y>a<y> a", add_special=False) == [7, 4, 7, 3, 4]
    assert tokenizer.encode("<x>a<x> a", add_special=False) == [3, 6, 5, 6, 4]
    for text in ("<y>a<y> a", "<x>a<x> a", "a<y><x>a"):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def test_unused_tokens_fall_apart() -> None:
    tokens, scores = ["<unk>", "a", "b", "c", "ab", "abc"], [0, -9, -9, -9, -1, -2]
    whole = _tokenizer(tokens, [2, 1, 1, 1, 1, 1], scores, False)
    unused = _tokenizer(tokens, [2, 1, 1, 1, 1, TokenType.UNUSED], scores, False)
    assert whole.encode("abc", add_special=False) == [5]
    assert unused.encode("abc", add_special=False) == [4, 3]


def test_unknown_characters() -> None:
    tokenizer = _tokenizer(["<unk>", "a", "b"], [2, 1, 1], [0, -1, -2], False)
    assert tokenizer.encode("axyb", add_special=False) == [1, 0, 2]
    assert tokenizer.unwritable("axybx") == "xyx"


def test_scores_are_needed() -> None:
    with pytest.raises(UnsupportedModel, match="scores is missing"):
        Tokenizer.from_metadata(gguf_metadata("llama", ["<unk>", "a"], [2, 1]))


def test_phi3_special_tokens_swallow_the_space_after_them() -> None:
    tokens, scores = ["<unk>", "<s>", "</s>", "<|end|>", "▁", "\n", "a"], [0, 0, 0, 0, -1, -2, -3]
    types = [2, 3, 3, 3, 1, 1, 1]
    ids = {}
    for architecture in ("llama", "phi3"):
        metadata = gguf_metadata("llama", tokens, types, scores=scores, add_space_prefix=False)
        metadata["general.architecture"] = architecture
        ids[architecture] = Tokenizer.from_metadata(metadata).encode("<|end|>\n a<s>\n", add_special=False)
    assert ids == {"llama": [3, 5, 4, 6, 1, 5], "phi3": [3, 6, 1, 5]}


def test_long_text_without_spaces() -> None:
    tokenizer = _tokenizer(["<unk>", "a", "aa", "aaa"], [2, 1, 1, 1], [0, -3, -1, -2], False)
    ids = tokenizer.encode("a" * 20_001, add_special=False)
    assert np.bincount(ids).tolist() == [0, 0, 9_999, 1]


def _tokenizer(tokens: list[str], types: list[int], scores: list[float], add_space_prefix: bool = True) -> Tokenizer:
    return Tokenizer.from_metadata(
        gguf_metadata("llama", tokens, types, scores=scores, add_space_prefix=add_space_prefix)
    )


def test_bytes_that_a_file_has_as_ordinary_tokens_are_bytes() -> None:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    typed = Tokenizer.from_metadata(
        gguf_metadata("llama", texts, [2, 3, 3, *[6] * 256, 1, 1], scores=[0.0] * len(texts))
    )
    plain = Tokenizer.from_metadata(gguf_metadata("llama", texts, [2, 3, 3, *[1] * 258], scores=[0.0] * len(texts)))
    assert plain.encode("aé", add_special=False) == typed.encode("aé", add_special=False)
    assert plain.decode(plain.encode("aé", add_special=False)) == "aé"
