"""PLaMo 2's tokenizer: the way to split a text into pieces that costs least, found from its end.

In: text without special tokens. Out: ids. A piece costs its score, negated, in ten-thousandths; a character that no
piece covers costs far more and becomes the tokens of its bytes. Of equal ways the one with the longer first piece is
taken. Does not handle special tokens.
"""

from __future__ import annotations

import math

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.sentencepiece import SpacedPieces
from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import Vocabulary, beginnings_of

SCALE = 10_000
UNKNOWN_COST = 10_000_000
_IN_TEXT = (TokenType.NORMAL, TokenType.UNDEFINED, TokenType.USER_DEFINED, TokenType.UNUSED)


class PlamoEncoder:
    """Encodes plain text with the scores of a vocabulary; one instance can be used by several threads.

    Raises BadGGUF if the vocabulary has no scores, or tokens that are far too long.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.scores:
            raise BadGGUF("tokenizer.ggml.scores is missing: a vocabulary of PLaMo (tokenizer.ggml.model) needs them")
        self._tokens = vocabulary.tokens
        self._spaced = SpacedPieces(vocabulary)
        self._bytes = {token: bytes([byte]) for byte, token in self._spaced.byte_ids.items()}
        self._unknown = [] if vocabulary.unk_id is None else [vocabulary.unk_id]
        self._costs = {
            text: (_cost(score), token)
            for token, (text, score, kind) in enumerate(
                zip(vocabulary.tokens, vocabulary.scores, vocabulary.types, strict=True)
            )
            if kind in _IN_TEXT and text and math.isfinite(score)
        }
        self._beginnings = beginnings_of(self._costs)

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position."""
        steps, ids, at = self._steps(text), list[int](), 0
        while at < len(text):
            token, size = steps[at]
            ids += self._bytes_of(text[at]) if token is None else [token]
            at += size
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` that have neither a token nor tokens of their bytes."""
        lacking = {c for c in set(text) - self._costs.keys() if not self._spaced.byte_ids.keys() >= set(c.encode())}
        return "".join(character for character in text if character in lacking)

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for."""
        return self._bytes[token] if token in self._bytes else self._tokens[token].encode()

    def _steps(self, text: str) -> list[tuple[int | None, int]]:
        """The token to take at each place, and its length; None where only bytes can be written."""
        costs, beginnings, n = self._costs, self._beginnings, len(text)
        total = [0] * (n + 1)
        steps: list[tuple[int | None, int]] = [(None, 1)] * n
        for at in reversed(range(n)):
            best, end = total[at + 1] + UNKNOWN_COST, at + 1
            while end <= n and (piece := text[at:end]) in beginnings:
                if piece in costs and (cost := total[end] + costs[piece][0]) <= best:
                    best, steps[at] = cost, (costs[piece][1], end - at)
                end += 1
            total[at] = best
        return steps

    def _bytes_of(self, character: str) -> list[int]:
        byte_ids, data = self._spaced.byte_ids, character.encode()
        return [byte_ids[byte] for byte in data] if byte_ids.keys() >= set(data) else self._unknown


def _cost(score: float) -> int:
    scaled = -score * SCALE
    return math.floor(scaled + 0.5) if scaled >= 0 else math.ceil(scaled - 0.5)
