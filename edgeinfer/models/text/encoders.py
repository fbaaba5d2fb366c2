"""The kinds of tokenizers in GGUF files, and the encoder of each.

In: a vocabulary and the metadata it came from. Out: an encoder of plain text. Independent of special tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.text.byte_level import ByteLevelEncoder
from edgeinfer.models.text.greedy import GreedyEncoder
from edgeinfer.models.text.plamo import PlamoEncoder
from edgeinfer.models.text.pre_tokenizers import SPACED, WHITESPACE, pre_tokenizer
from edgeinfer.models.text.sentencepiece import SentencePieceEncoder
from edgeinfer.models.text.spaced import SpacedEncoder, SpacelessEncoder
from edgeinfer.models.text.unigram import CHARSMAP, UnigramEncoder
from edgeinfer.models.text.vocabulary import TokenizerMetadata, Vocabulary
from edgeinfer.models.text.word_piece import WordPieceEncoder

MODEL = "tokenizer.ggml.model"
PREFIX = "tokenizer.ggml."


class TextEncoder(Protocol):
    """Turns plain text into ids."""

    def encode(self, text: str, *, starts: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...
    def unwritable(self, text: str) -> str: ...


def kind_of(metadata: TokenizerMetadata) -> str:
    """The kind of tokenizer in a GGUF file. Raises UnsupportedModel for an unsupported one."""
    model = metadata.text(MODEL) if MODEL in metadata else None
    if model not in _ENCODERS:
        found = f"is {model!r}" if model is not None else "is missing"
        *first, last = (f"{name} ({words})" for name, (words, _) in _ENCODERS.items())
        raise UnsupportedModel(f"{MODEL} {found}; edgeinfer reads {', '.join(first)} and {last}")
    return model


def encoder_of(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> TextEncoder:
    """The encoder of a vocabulary.

    Raises UnsupportedModel for an unsupported pre-tokenizer, BadGGUF for lists that do not fit together.
    """
    _, make = _ENCODERS[vocabulary.model]
    return make(vocabulary, metadata)


def merges_of(metadata: TokenizerMetadata) -> list[str]:
    """The merges of a byte-pair encoding. Raises BadGGUF if there are none."""
    key = f"{PREFIX}merges"
    if key not in metadata:
        raise BadGGUF(f"{key} is missing: a byte-pair encoding ({MODEL} = {metadata.text(MODEL)}) needs its merges")
    return metadata.strings(key)


def is_byte_level(vocabulary: Vocabulary) -> bool:
    """Whether tokens are merged from bytes written as characters."""
    return vocabulary.model == "gpt2" and vocabulary.pre not in (*SPACED, WHITESPACE)


def _merging(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> TextEncoder:
    if vocabulary.pre in SPACED:
        return SpacedEncoder(vocabulary, merges_of(metadata))
    if vocabulary.pre == WHITESPACE:
        return _spaceless(vocabulary, metadata)
    rules = pre_tokenizer(vocabulary.pre)
    return ByteLevelEncoder(vocabulary, merges_of(metadata), rules)


def _spaceless(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> TextEncoder:
    lowers = _flag(metadata, "normalizer.lowercase", default=False)
    return SpacelessEncoder(vocabulary, merges_of(metadata), lowers=lowers)


def _word_piece(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> TextEncoder:
    lowers = _flag(metadata, "normalizer.lowercase", default=True)
    strips = _flag(metadata, "normalizer.strip_accents", default=lowers)
    return WordPieceEncoder(vocabulary, lowers=lowers, strips_accents=strips)


def _unigram(vocabulary: Vocabulary, metadata: TokenizerMetadata) -> TextEncoder:
    joins_spaces = _flag(metadata, "remove_extra_whitespaces", default=True)
    charsmap = metadata.numbers(CHARSMAP) if CHARSMAP in metadata else None
    if charsmap is not None and charsmap.dtype.kind not in "iu":
        raise BadGGUF(f"{CHARSMAP} must be an array of bytes, not of {charsmap.dtype}")
    return UnigramEncoder(
        vocabulary, b"" if charsmap is None else bytes(charsmap.astype("uint8")), joins_spaces=joins_spaces
    )


def _flag(metadata: TokenizerMetadata, name: str, *, default: bool) -> bool:
    key = PREFIX + name
    return metadata.flag(key) if key in metadata else default


_ENCODERS: dict[str, tuple[str, Callable[[Vocabulary, TokenizerMetadata], TextEncoder]]] = {
    "gpt2": ("byte-level BPE", _merging),
    "llama": ("SentencePiece BPE", lambda vocabulary, _: SentencePieceEncoder(vocabulary)),
    "gemma4": ("BPE of characters", _merging),
    "bert": ("WordPiece", _word_piece),
    "t5": ("Unigram", _unigram),
    "rwkv": ("longest tokens first", lambda vocabulary, _: GreedyEncoder(vocabulary)),
    "plamo2": ("least cost", lambda vocabulary, _: PlamoEncoder(vocabulary)),
    "whitespace": ("BPE of words", _spaceless),
}
