"""Special tokens in text against the added tokens of the `tokenizers` package."""

from __future__ import annotations

import random

import pytest

from edgeinfer.models.text import Vocabulary
from edgeinfer.models.text.special_tokens import SpecialTokens
from tests.unit.models.text.small_vocabularies import gguf_metadata

TOKENS = ["a", "b", " ", "<|", "|>", "<|x|>", "<|xy|>", "x|>b", "aa", "aab", "[[", "b<|x"]


def vocabulary(types: list[int]) -> Vocabulary:
    return Vocabulary.from_metadata(gguf_metadata("gpt2", TOKENS, types))


def test_longest_at_the_leftmost_place_as_in_the_tokenizers_package() -> None:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel

    judge = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    judge.add_special_tokens([AddedToken(token, normalized=False) for token in TOKENS[3:]])
    special = SpecialTokens(vocabulary([1] * 3 + [3] * (len(TOKENS) - 3)))
    generator = random.Random(3)
    for _ in range(500):
        text = "".join(generator.choices(["<|", "x", "y", "|>", "a", "b", " ", "["], k=generator.randrange(14)))
        parts = list(special.split(text, parse_special=True))
        assert "".join(part if isinstance(part, str) else TOKENS[part] for part in parts) == text
        found = [TOKENS[part] if not isinstance(part, str) else "?" for part in parts]
        assert found == judge.encode(text).tokens


def test_only_user_defined_tokens_without_parsing() -> None:
    special = SpecialTokens(vocabulary([1, 1, 1, 3, 3, 3, 2, 1, 4, 4, 4, 1]))
    assert list(special.split("aab<|x|>[[<|xy|>", parse_special=False)) == [9, "<|x|>", 10, "<|xy|>"]
    assert list(special.split("aab<|x|>[[<|xy|>", parse_special=True)) == [9, 5, 10, 6]


@pytest.mark.parametrize("text", ["", "plain", "\x00", "]^-\\"])
def test_text_without_special_tokens_stays_whole(text: str) -> None:
    special = SpecialTokens(vocabulary([1, 1, 1, 3, 3, 3, 2, 1, 4, 4, 4, 1]))
    assert list(special.split(text, parse_special=True)) == ([text] if text else [])


def test_no_special_tokens_at_all() -> None:
    special = SpecialTokens(vocabulary([1] * len(TOKENS)))
    assert list(special.split("<|x|>", parse_special=True)) == ["<|x|>"]
