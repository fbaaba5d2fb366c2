"""Merges of characters, with spaces written as ▁ or left out, against the `tokenizers` package as models use it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text import Tokenizer, TokenType
from edgeinfer.models.text.tokenizer_file import tokenizer_files
from tests.unit.models.text.small_vocabularies import SAMPLES, gguf_metadata

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def trained(kind: str = "gemma4", **settings: Any) -> SimpleNamespace:
    """A tokenizer of Gemma's kind, whose merges cross newlines and, once, a space: `judge` and `metadata`."""
    from tokenizers import Tokenizer as Peer
    from tokenizers import normalizers, trainers
    from tokenizers.models import BPE

    judge = Peer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    judge.normalizer = normalizers.Replace(" ", "▁")
    judge.train_from_iterator(
        [word for text in SAMPLES for word in text.replace(" ", "  ").split(" ")] * 3,
        trainers.BpeTrainer(vocab_size=520, special_tokens=[*SPECIAL, *BYTES], show_progress=False),
    )
    model = json.loads(judge.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    vocab = model["vocab"]
    for merge in ("\n \n", "\n\n \n", "> ▁", "▁ t", "▁t h"):
        for piece in (*merge.split(" "), merge.replace(" ", "")):
            vocab.setdefault(piece, len(vocab))
        merges.append(merge)
    tokens = sorted(vocab, key=vocab.__getitem__)
    judge = Peer(
        BPE(vocab, [tuple(merge.split(" ")) for merge in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    judge.normalizer = normalizers.Replace(" ", "▁")
    types = [
        TokenType.CONTROL if token in SPECIAL else TokenType.BYTE if token in BYTES else TokenType.NORMAL
        for token in tokens
    ]
    more = {"merges": merges, "bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, **settings}
    return SimpleNamespace(judge=judge, metadata=gguf_metadata(kind, tokens, types, **more))


def test_ids_and_text_equal_the_packages(texts: list[str]) -> None:
    made = trained()
    tokenizer = Tokenizer.from_metadata(made.metadata)
    for text in (*texts, "> the  >  th", "\n" * 9, "</s> <bos>"):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == made.judge.encode(text).ids, text
        if "▁" not in text:
            assert tokenizer.decode(ids) == text
            assert tokenizer.unwritable(text) == ""


def test_ids_equal_on_any_unicode() -> None:
    made = trained()
    tokenizer = Tokenizer.from_metadata(made.metadata)

    @given(UNICODE | st.text("the> \nq", max_size=60))
    def equal(text: str) -> None:
        assert tokenizer.encode(text, add_special=False, parse_special=False) == made.judge.encode(text).ids

    equal()


def test_texts_begin_with_bos_whatever_the_file_says() -> None:
    tokenizer = Tokenizer.from_metadata(trained(add_bos_token=False).metadata)
    assert tokenizer.encode("") == [2]
    assert tokenizer.encode_rendered("<bos><|turn>") == [2, 4]
    assert tokenizer.vocabulary.end_of_generation == {1, 5}


@pytest.mark.parametrize("pre", ["gemma4", "sarvam-moe", "granite-embed-multi-311m"])
def test_other_models_name_the_kind_by_their_pre_tokenizer(pre: str) -> None:
    made = trained("gpt2", pre=pre)
    tokenizer = Tokenizer.from_metadata(made.metadata)
    text = "the quick  <|turn>fox\n\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    assert tokenizer.vocabulary.add_bos == (pre != "sarvam-moe")
    with pytest.raises(Exception, match="no byte-level one"):
        tokenizer_files(made.metadata, 512)


def test_characters_without_tokens_are_unknown_once_where_no_bytes_are() -> None:
    more = {"merges": ["▁ a"], "unknown_token_id": 0, "bos_token_id": 1}
    metadata = gguf_metadata("gemma4", ["<unk>", "<bos>", "▁", "a", "▁a"], [2, 3, 1, 1, 1], **more)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a xy a", add_special=False) == [3, 2, 0, 4]
    assert tokenizer.unwritable("a xy a") == "xy"


@pytest.mark.parametrize("merges", [["a b", "ab"], ["a x"]])
def test_merges_that_do_not_fit_are_refused(merges: list[str]) -> None:
    with pytest.raises(BadGGUF, match=r"tokenizer\.ggml\.merges"):
        Tokenizer.from_metadata(gguf_metadata("gemma4", ["a", "b", "ab"], [1, 1, 1], merges=merges))


@pytest.mark.parametrize("lowers", [True, False])
def test_words_without_the_spaces_between(lowers: bool) -> None:
    from tokenizers import Tokenizer as Peer
    from tokenizers import normalizers, pre_tokenizers
    from tokenizers.models import BPE

    tokens = ["<unk>", *"abcABC.,!", "ab", "abc", "AB", ".,"]
    merges = ["a b", "ab c", "A B", ". ,"]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    judge = Peer(BPE({token: n for n, token in enumerate(tokens)}, pairs, unk_token="<unk>"))
    judge.pre_tokenizer = pre_tokenizers.Whitespace()
    if lowers:
        judge.normalizer = normalizers.Lowercase()
    metadata = gguf_metadata("whitespace", tokens, [2] + [1] * 13, merges=merges, unknown_token_id=0)
    metadata |= {"tokenizer.ggml.pre": "whitespace", "tokenizer.ggml.normalizer.lowercase": lowers}
    tokenizer = Tokenizer.from_metadata(metadata)
    draw = np.random.default_rng(2)
    for _ in range(200):
        text = "".join(draw.choice([*"abcABC.,! \n\u3000", "ab", "é"], size=draw.integers(1, 20)))
        assert tokenizer.encode(text, add_special=False) == judge.encode(text).ids, text
    assert tokenizer.decode(tokenizer.encode("abc ab", add_special=False)) == "abcab"
    assert tokenizer.unwritable("ab é\nx") == "éx"
