"""Byte-level BPE against the `tokenizers` package's own tokenizers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.errors import BadGGUF, EdgeInferError, UnsupportedModel
from edgeinfer.models.text import Tokenizer, TokenType
from tests.unit.models.text.small_vocabularies import gguf_metadata

# Text as it can be encoded: everything but surrogates.
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_ids_equal_the_trainers_tokenizer(byte_level: SimpleNamespace, texts: list[str]) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)
    for text in texts:
        assert tokenizer.encode(text, add_special=False) == byte_level.judge.encode(text).ids, text


@pytest.mark.usefixtures("texts")
def test_ids_equal_on_any_unicode(byte_level: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)

    @given(UNICODE)
    def equal(text: str) -> None:
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == byte_level.plain.encode(text).ids
        assert tokenizer.decode(ids) == text

    equal()


def test_control_tokens_are_read_only_when_asked(byte_level: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)
    text = "a<|im_start|>b<|im_end|><|im_end|>"
    start, end = tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")
    assert start is not None
    assert end is not None
    ids = tokenizer.encode(text)
    assert [token for token in ids if token in (start, end)] == [start, end, end]
    plain = tokenizer.encode(text, parse_special=False)
    assert not {start, end} & set(plain)
    assert plain == byte_level.plain.encode(text).ids
    assert tokenizer.decode(ids) == tokenizer.decode(plain) == text
    assert tokenizer.decode(ids, skip_special=True) == "ab"


def test_user_defined_tokens_are_always_read(byte_level: SimpleNamespace) -> None:
    metadata = type(byte_level.metadata)(byte_level.metadata)
    tokens = [*metadata["tokenizer.ggml.tokens"], "hello", "hello wörld"]
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], TokenType.USER_DEFINED, 4]
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("xhello wörld hello", add_special=False, parse_special=False)
    assert len(tokens) - 1 in ids
    assert ids[-1] == len(tokens) - 2
    assert tokenizer.pieces(ids)[1] == "hello wörld"
    assert tokenizer.piece(ids[1]) == "hello wörld".encode()


@pytest.mark.parametrize(("add_bos", "add_eos"), [(True, False), (False, True), (True, True), (False, False)])
def test_bos_and_eos_are_added_as_the_vocabulary_says(
    byte_level: SimpleNamespace, add_bos: bool, add_eos: bool
) -> None:
    metadata = type(byte_level.metadata)(byte_level.metadata)
    metadata |= {"tokenizer.ggml.add_bos_token": add_bos, "tokenizer.ggml.add_eos_token": add_eos}
    tokenizer = Tokenizer.from_metadata(metadata)
    plain = tokenizer.encode("text", add_special=False)
    assert tokenizer.encode("text") == [1] * add_bos + plain + [2] * add_eos
    assert tokenizer.encode("") == [1] * add_bos + [2] * add_eos
    assert tokenizer.encode_rendered("<|im_start|>text") == [1, *plain]
    assert tokenizer.encode_rendered("text") == [1] * add_bos + plain


def test_whole_words_are_taken_without_merges_where_the_pre_tokenizer_says() -> None:
    from tokenizers import Tokenizer as Judge
    from tokenizers.models import BPE

    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    found = {}
    for name in ("llama-bpe", "dbrx"):
        metadata = _metadata(tokens, ["b c", "a b"], pre=name)
        found[name] = Tokenizer.from_metadata(metadata).encode("abc", add_special=False)
        judge = Judge(BPE(vocabulary, [("b", "c"), ("a", "b")], ignore_merges=name == "llama-bpe"))
        assert found[name] == judge.encode("abc").ids
    assert found["llama-bpe"] != found["dbrx"]


def test_text_that_is_no_unicode_is_refused(byte_level: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)
    with pytest.raises(EdgeInferError, match=r"U\+D83D at character 2"):
        tokenizer.encode("ab\ud83d")


def test_bytes_that_the_vocabulary_lacks_are_named() -> None:
    tokenizer = Tokenizer.from_metadata(_metadata(["a", "b", "ab"], ["a b"]))
    assert tokenizer.encode("ab", add_special=False) == [2]
    assert tokenizer.unwritable("ab") == ""
    assert tokenizer.unwritable("axbyé") == "xyé"


def test_ids_outside_the_vocabulary_are_refused(byte_level: SimpleNamespace) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)
    for token in (-1, tokenizer.n_tokens):
        with pytest.raises(EdgeInferError, match="outside the vocabulary"):
            tokenizer.piece(token)
        with pytest.raises(EdgeInferError, match="outside the vocabulary"):
            tokenizer.decode([token])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokenizer.ggml.model": "hybriddna"}, UnsupportedModel, "'hybriddna'; edgeinfer reads gpt2 .*, rwkv"),
        ({"tokenizer.ggml.model": "plamo2"}, BadGGUF, "scores is missing"),
        ({"tokenizer.ggml.model": "bert"}, BadGGUF, "unknown_token_id is missing"),
        ({"tokenizer.ggml.model": "t5"}, BadGGUF, "needs scores and an unknown token"),
        ({"tokenizer.ggml.model": None}, UnsupportedModel, "is missing"),
        ({"tokenizer.ggml.pre": "klingon"}, UnsupportedModel, "'klingon'; edgeinfer has: .*llama-bpe.*smollm"),
        ({"tokenizer.ggml.merges": None}, BadGGUF, "merges is missing"),
        ({"tokenizer.ggml.merges": ["a b", "ab"]}, BadGGUF, r"merges\[1\] is 'ab'"),
        ({"tokenizer.ggml.merges": ["a x"]}, BadGGUF, "does not fit"),
        ({"tokenizer.ggml.tokens": []}, BadGGUF, "no vocabulary"),
        ({"tokenizer.ggml.token_type": [1]}, BadGGUF, "1 entries for 3 tokens"),
    ],
)
def test_vocabularies_that_cannot_be_used(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    metadata = _metadata(["a", "b", "ab"], ["a b"])
    for key, value in changes.items():
        metadata.pop(key)
        if value is not None:
            metadata[key] = value
    with pytest.raises(error, match=message):
        Tokenizer.from_metadata(metadata)


def test_equal_tokens_keep_the_first_id() -> None:
    tokenizer = Tokenizer.from_metadata(_metadata(["a", "b", "a"], []))
    assert tokenizer.encode("aba", add_special=False) == [0, 1, 0]
    assert tokenizer.token_id("a") == 0


@pytest.mark.parametrize("character", [" ", "a", "\n", "1", "'"])
def test_long_monotonous_text(byte_level: SimpleNamespace, character: str) -> None:
    text = character * 200_000
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def _metadata(tokens: list[str], merges: list[str], pre: str = "smollm") -> Any:
    return gguf_metadata("gpt2", tokens, [1] * len(tokens), pre=pre, merges=merges)
