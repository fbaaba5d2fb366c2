"""Streaming detokenisation: whole characters as soon as they are complete, and partial matches of stop strings.

In: ids one at a time. Out: text. Bytes that may still become a character wait for the next token; invalid bytes become
U+FFFD, as in Python's incremental UTF-8 decoder. Independent of tokenization.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from edgeinfer.models.text.vocabulary import TokenType, Vocabulary


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
    removed at the start and after control tokens, unless the stream `continues` an earlier text.
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
