"""Byte-level BPE: text to token ids by merges over bytes written as characters.

In: text without special tokens. Out: ids, through the `tokenizers` package, which is imported when an encoder is
created. Does not handle special tokens.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.pre_tokenizers import PreTokenizer
from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import Vocabulary


def byte_characters() -> dict[int, str]:
    """The printable character for each byte in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves, the other bytes for U+0100 and up, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


class ByteLevelEncoder:
    """Encodes plain text with the merges of a vocabulary; one instance can be used by several threads.

    Raises BadGGUF if merges are malformed or produce a token missing from the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, merges: list[str], pre_tokenizer: PreTokenizer) -> None:
        self._tokens = vocabulary.tokens
        self._types = vocabulary.types
        self._bytes = {character: byte for byte, character in byte_characters().items()}
        self._composes = pre_tokenizer.composes
        ids = first_ids(vocabulary)
        self._missing = frozenset(byte for character, byte in self._bytes.items() if character not in ids)
        self._tokenizer = merging_tokenizer(ids, merges, pre_tokenizer)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position. Characters that are `unwritable` yield no token."""
        if self._composes and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` whose bytes are missing from the vocabulary."""
        if not self._missing or self._missing.isdisjoint(text.encode()):
            return ""
        return "".join(character for character in text if not self._missing.isdisjoint(character.encode()))

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for in a text."""
        text = self._tokens[token]
        if self._types[token] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return text.encode()
        try:
            return bytes([self._bytes[character] for character in text])
        except KeyError:
            return text.encode()


def first_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The id of each token's text; for equal texts the first."""
    ids = dict(zip(vocabulary.tokens, range(vocabulary.n_tokens), strict=True))
    if len(ids) < len(vocabulary.tokens):
        ids = {text: token for token, text in reversed(list(enumerate(vocabulary.tokens)))}
    return ids


def merging_tokenizer(ids: dict[str, int], merges: list[str], pre_tokenizer: PreTokenizer) -> Any:
    """A `tokenizers.Tokenizer` that splits and merges, without special tokens. Raises BadGGUF.

    It does not compose characters: Python does that in a fraction of the time.
    """
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    tokenizer = Tokenizer(merging_model(ids, merges, ignore_merges=pre_tokenizer.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre_tokenizer.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    return tokenizer


def merging_model(ids: dict[str, int], merges: list[str], **settings: Any) -> Any:
    """A `tokenizers` model of byte-pair encoding, with the package's `settings`. Raises BadGGUF."""
    from tokenizers.models import BPE

    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in merges]
    if set(map(len, pairs)) - {2}:
        wrong = next(index for index, pair in enumerate(pairs) if len(pair) != 2)
        raise BadGGUF(
            f"tokenizer.ggml.merges[{wrong}] is {merges[wrong]!r}; a merge is two pieces with a space between"
        )
    try:
        return BPE(ids, pairs, **settings)
    except Exception as error:
        # The package raises bare Exception for merges whose pieces are not tokens.
        raise BadGGUF(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
