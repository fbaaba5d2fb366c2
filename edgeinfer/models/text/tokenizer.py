"""Text to token ids and back, for the tokenizers in GGUF files.

In: a vocabulary with its merges or scores. Out: ids, pieces, text. Special tokens are found first; the text between
them goes to the encoder for the vocabulary's kind. On the way back a `StreamDecoder` gives out whole characters as soon
as they are complete: bytes that may still become a character wait for the next token; invalid bytes become U+FFFD, as
in Python's incremental UTF-8 decoder. Independent of chat templates and generation.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Protocol

from edgeinfer.errors import BadSetting
from edgeinfer.models.text.encoders import TextEncoder, encoder_of, kind_of
from edgeinfer.models.text.special_tokens import SpecialTokens
from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import TokenizerMetadata, Vocabulary
from edgeinfer.models.text.written_marks import NO_STAND_INS, StandIns, WrittenMarks


class Tokenizer:
    """Tokenizes with one vocabulary; one instance can be used by several threads."""

    def __init__(self, vocabulary: Vocabulary, encoder: TextEncoder) -> None:
        self.vocabulary = vocabulary
        self._encoder = encoder
        self._special = SpecialTokens(vocabulary)

    @classmethod
    def from_metadata(cls, metadata: TokenizerMetadata) -> Tokenizer:
        """The tokenizer in a GGUF file.

        Raises UnsupportedModel for an unsupported kind of tokenizer or pre-tokenizer, BadGGUF for lists that do not fit
        together.
        """
        return cls.with_vocabulary(vocabulary_of(metadata), metadata)

    @classmethod
    def with_vocabulary(cls, vocabulary: Vocabulary, metadata: TokenizerMetadata) -> Tokenizer:
        """Like `from_metadata`, with the result of `vocabulary_of`; this is the longer part of the work."""
        return cls(vocabulary, encoder_of(vocabulary, metadata))

    @cached_property
    def marks(self) -> WrittenMarks:
        """Finds and hides the control tokens that are spelled in texts."""
        return WrittenMarks(self._special.control)

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.vocabulary.n_tokens

    @property
    def strips_first_space(self) -> bool:
        """Whether encoding puts a space before a text, which decoding removes."""
        return self.vocabulary.model in ("llama", "t5") and self.vocabulary.add_space_prefix

    def token_id(self, text: str) -> int | None:
        """The id of the token with the text `text`, or None."""
        return self.vocabulary.tokens.index(text) if text in self.vocabulary.tokens else None

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        goes_on: bool = False,
        stand_ins: StandIns = NO_STAND_INS,
    ) -> list[int]:
        """Ids of `text`.

        `add_special` adds the BOS and EOS tokens that the vocabulary requires. `parse_special` recognises control
        tokens written in the text; otherwise they are plain text (user-defined tokens are always recognised).
        `goes_on`: the text continues an earlier one, so no space is put before it. `stand_ins`: characters in the text
        that stand for others, so that some marks are not recognised. Raises BadSetting for text with lone surrogates,
        which has no UTF-8 form.
        """
        _check_unicode(text)
        vocabulary = self.vocabulary
        ids = [vocabulary.bos_id] if add_special and vocabulary.add_bos and vocabulary.bos_id is not None else []
        starts = not goes_on
        for part in self._parts(text, parse_special, stand_ins):
            if isinstance(part, str):
                ids += self._encoder.encode(part, starts=starts)
                starts = False
            elif vocabulary.begins_anew(part):
                ids.append(part)
                starts = True
            else:
                ids += self._encoder.encode("", starts=starts)
                ids.append(part)
                starts = False
        if add_special and vocabulary.add_eos and vocabulary.eos_id is not None:
            ids.append(vocabulary.eos_id)
        return ids

    def _parts(self, text: str, parse_special: bool, stand_ins: StandIns) -> Iterator[str | int]:
        """Plain stretches as users wrote them, and special tokens."""
        parts = self._special.split(text, parse_special=parse_special)
        if not stand_ins:
            return parts
        return chain.from_iterable(
            [part] if isinstance(part, int) else self._special.split(stand_ins.shown(part), parse_special=False)
            for part in parts
        )

    def encode_rendered(self, text: str, stand_ins: StandIns = NO_STAND_INS) -> list[int]:
        """Ids of a rendered chat template: special tokens parsed, BOS added unless `text` begins with it, no EOS."""
        ids = self.encode(text, add_special=False, stand_ins=stand_ins)
        bos = self.vocabulary.bos_id
        if self.vocabulary.add_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that the vocabulary cannot represent; empty for nearly all text.

        A byte-level vocabulary that lacks some bytes yields no token for them; a SentencePiece vocabulary without byte
        tokens yields its unknown token. Callers that must not lose characters check this.
        """
        _check_unicode(text)
        return self._encoder.unwritable(text)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`; invalid UTF-8 becomes U+FFFD. `skip_special` leaves control tokens out."""
        decoder = StreamDecoder(self, show_control=not skip_special)
        return "".join([*map(decoder.push, ids), decoder.finish()])

    def piece(self, token: int) -> bytes:
        """The exact bytes that `token` stands for. Raises BadSetting for an id outside the vocabulary."""
        if not 0 <= token < self.n_tokens:
            raise BadSetting(f"token {token} is outside the vocabulary; ids go from 0 to {self.n_tokens - 1}")
        return self._encoder.piece(token)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token's own text; a token with part of a character shows U+FFFD."""
        return [self.piece(token).decode("utf-8", "replace") for token in ids]


def vocabulary_of(metadata: TokenizerMetadata) -> Vocabulary:
    """The vocabulary in a GGUF file. Raises UnsupportedModel for an unsupported kind, BadGGUF."""
    kind_of(metadata)
    return Vocabulary.from_metadata(metadata)


def _check_unicode(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadSetting(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}), which is no "
            "Unicode text; decode its bytes as UTF-8 with errors='replace'"
        ) from error


class PieceSource(Protocol):
    """What a decoder needs from a tokenizer."""

    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def strips_first_space(self) -> bool: ...
    def piece(self, token: int) -> bytes: ...


class StreamDecoder:
    """Decodes one stream of tokens.

    Control tokens are left out unless `show_control`. Tokenizing puts a space in front of a SentencePiece text: it is
    removed at the start and after special tokens, unless the stream `continues` an earlier text.
    """

    def __init__(self, tokenizer: PieceSource, *, show_control: bool = False, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._types = tokenizer.vocabulary.types
        self._show_control = show_control
        self._strips = tokenizer.strips_first_space
        self._starts = self._strips and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that `token` completes, possibly empty. Raises EdgeInferError for an id outside the vocabulary."""
        piece = self._tokenizer.piece(token)
        if self._tokenizer.vocabulary.is_control(token):
            self._starts = self._strips
            return self._decoder.decode(piece) if self._show_control else ""
        if self._starts:
            self._starts = False
            if self._types[token] != TokenType.USER_DEFINED:
                piece = piece.removeprefix(b" ")
        if self._strips and self._tokenizer.vocabulary.begins_anew(token):
            self._starts = True
        return self._decoder.decode(piece)

    @property
    def is_whole(self) -> bool:
        """Whether no incomplete character is pending."""
        return not self._decoder.getstate()[0]

    def finish(self) -> str:
        """The text of pending bytes: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def overlap(text: str, awaited: str) -> int:
    """How many characters at the end of a text match the beginning of the awaited one, but not all of it."""
    longest = min(len(awaited) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(awaited[:n])), 0)
