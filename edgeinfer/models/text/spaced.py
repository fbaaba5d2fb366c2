"""Byte-pair encoding of characters, with spaces written as ▁ (Gemma 4's) or left out: text to token ids by merges.

In: text without special tokens. Out: ids, through the `tokenizers` package, which is imported when an encoder is
created. Characters without a token become tokens of their bytes, or the unknown token. Does not handle special tokens.
"""

from __future__ import annotations

from edgeinfer.models.text.byte_level import first_ids, merging_model
from edgeinfer.models.text.sentencepiece import SPACE, SpacedPieces, word_pattern
from edgeinfer.models.text.vocabulary import Vocabulary


class SpacedEncoder:
    """Encodes plain text with the merges of a vocabulary; one instance can be used by several threads.

    Merges go across whole texts in the models' own tokenizers; words are cut where no token would join them, so that
    the package remembers them. Raises BadGGUF if merges are malformed or produce a token missing from the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, merges: list[str]) -> None:
        from tokenizers import Regex, Tokenizer, pre_tokenizers

        self._ids = first_ids(vocabulary)
        self.piece = SpacedPieces(vocabulary)
        unknown = None if vocabulary.unk_id is None else vocabulary.tokens[vocabulary.unk_id]
        model = merging_model(self._ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word_pattern(self._ids)), "isolated")

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position."""
        ids: list[int] = self._tokenizer.encode(text.replace(" ", SPACE), add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that have neither a token nor tokens of their bytes."""
        return _unwritable(text.replace(" ", SPACE), self._ids, self.piece.byte_ids).replace(SPACE, " ")


class SpacelessEncoder:
    """Encodes words and punctuation without the spaces between; `lowers`: in lower case. Raises BadGGUF, like above."""

    def __init__(self, vocabulary: Vocabulary, merges: list[str], *, lowers: bool) -> None:
        from tokenizers import Tokenizer, normalizers, pre_tokenizers

        self._ids = first_ids(vocabulary)
        self._pieces = SpacedPieces(vocabulary)
        self._tokens = vocabulary.tokens
        unknown = None if vocabulary.unk_id is None else vocabulary.tokens[vocabulary.unk_id]
        self._tokenizer = Tokenizer(merging_model(self._ids, merges, unk_token=unknown, byte_fallback=True))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if lowers:
            self._tokenizer.normalizer = normalizers.Lowercase()

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text`, besides whitespace, that have neither a token nor tokens of their bytes."""
        return _unwritable("".join(text.split()), self._ids, self._pieces.byte_ids)

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for."""
        return self._pieces(token) if token in self._pieces.byte_ids.values() else self._tokens[token].encode()


def _unwritable(text: str, ids: dict[str, int], byte_ids: dict[int, int]) -> str:
    lacking = {character for character in set(text) - ids.keys() if not byte_ids.keys() >= set(character.encode())}
    return "".join(character for character in text if character in lacking)
