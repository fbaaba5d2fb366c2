"""SentencePiece's byte-pair encoding: text to token ids by scores, with byte fallback.

In: text without special tokens. Out: ids. BPE merges the adjacent pair whose concatenation has the best score first,
the leftmost on ties, until no concatenation is a token (`bpe_model.cc` of SentencePiece). The rank of a merge is the
score of its *result*, so a result reached through two pairs has one rank and the leftmost wins; a list of merges, as
used by the `tokenizers` package, cannot express that. Does not handle special tokens or the start of a text.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable

from edgeinfer.errors import EdgeInferError, UnsupportedModel
from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import Vocabulary

SPACE = "▁"
_MERGEABLE = frozenset({TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED})
_VERBATIM = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED})
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CACHED_WORDS = 16384
_CACHED_LENGTH = 48


class SentencePieceEncoder:
    """Encodes plain text with the scores of a vocabulary; one instance can be used by several threads.

    Raises UnsupportedModel if the vocabulary has no scores.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.scores:
            raise UnsupportedModel(
                "tokenizer.ggml.scores is missing: a SentencePiece vocabulary (tokenizer.ggml.model = llama) needs them"
            )
        kinds, tokens = vocabulary.types, vocabulary.tokens
        self._ids = {tokens[t]: t for t in reversed(range(len(tokens))) if kinds[t] in _MERGEABLE}
        self._scores = vocabulary.scores
        self._unused = {text for text, token in self._ids.items() if kinds[token] == TokenType.UNUSED}
        self.piece = SpacedPieces(vocabulary)
        self._bytes = self.piece.byte_ids
        self._unk_id = vocabulary.unk_id
        self._add_space_prefix = vocabulary.add_space_prefix
        self._words = re.compile(word_pattern(self._ids))
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`; if it `starts` a text, a space is put before it if the vocabulary requires one."""
        escaped = ((" " if starts and self._add_space_prefix else "") + text).replace(" ", SPACE)
        ids: list[int] = []
        for word in self._words.findall(escaped):
            ids += self._word(word)
        return self._fused(ids)

    def unwritable(self, text: str) -> str:
        """The characters of `text` that become the unknown token."""
        lacking = {c for c in set(text.replace(" ", SPACE)) - self._ids.keys() if not self._has_bytes(c)}
        return "".join(character for character in text if character in lacking)

    def _word(self, word: str) -> tuple[int, ...]:
        known = self._cache.get(word)
        if known is not None:
            return known
        ids = tuple(self._merged(word))
        if len(word) <= _CACHED_LENGTH:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _merged(self, word: str) -> list[int]:
        symbols = list(word)
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        queue: list[tuple[float, int, int, int]] = []
        parts: dict[str, tuple[str, str]] = {}

        def offer(left: int, right: int) -> None:
            text = symbols[left] + symbols[right]
            token = self._ids.get(text)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, len(text)))
                if text in self._unused:
                    parts[text] = (symbols[left], symbols[right])

        for left in range(len(symbols) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, size = heapq.heappop(queue)
            # An entry is stale once either side has been merged with something else.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != size:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            following = after[left] = after[right]
            if following >= 0:
                before[following] = left
                offer(left, following)
            if before[left] >= 0:
                offer(before[left], left)
        return [token for symbol in symbols if symbol for token in self._resolved(symbol, parts)]

    def _resolved(self, symbol: str, parts: dict[str, tuple[str, str]]) -> list[int]:
        """Ids of a finished symbol: itself, or the parts of an unused token, or its bytes, or the unknown token."""
        if symbol in parts:
            return [token for part in parts[symbol] for token in self._resolved(part, parts)]
        token = self._ids.get(symbol)
        if token is not None:
            return [token]
        if self._has_bytes(symbol):
            return [self._bytes[byte] for byte in symbol.encode()]
        if self._unk_id is None:
            raise EdgeInferError(f"the vocabulary has no token for {symbol!r}, no byte tokens and no unknown token")
        return [self._unk_id]

    def _has_bytes(self, symbol: str) -> bool:
        return all(byte in self._bytes for byte in symbol.encode())

    def _fused(self, ids: list[int]) -> list[int]:
        """`ids` with each run of unknown tokens reduced to one, as in SentencePiece."""
        unk = self._unk_id
        if unk is None or unk not in ids:
            return ids
        return [token for i, token in enumerate(ids) if token != unk or i == 0 or ids[i - 1] != unk]


def word_pattern(texts: Iterable[str]) -> str:
    """A pattern for words that no merge can join: a space begins one unless some token has it after that character."""
    # Few vocabularies have tokens with a space after another character, and then only few.
    crossing = [text for text in texts if SPACE in text.lstrip(SPACE)]
    joined = sorted({text[at - 1] for text in crossing for at in range(1, len(text)) if text[at] == SPACE} - {SPACE})
    before = "".join(map(re.escape, joined))
    within = f"(?:(?<=[{before}]){SPACE}+)?" if before else ""
    return f"{SPACE}*(?:[^{SPACE}]+{within})+|{SPACE}+"


class SpacedPieces:
    """The bytes that tokens stand for where ▁ is a space and `<0xAB>` a byte; `byte_ids`: the token of each byte."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens, self._types = vocabulary.tokens, vocabulary.types
        # Some files have their bytes as ordinary tokens.
        has_types = TokenType.BYTE in vocabulary.types or "<0x0A>" not in vocabulary.tokens
        self.byte_ids = {
            byte: token
            for token, kind in enumerate(vocabulary.types)
            if kind == TokenType.BYTE or not has_types
            for byte in _byte(vocabulary.tokens[token])
        }
        self._bytes_of = {token: bytes([byte]) for byte, token in self.byte_ids.items()}

    def __call__(self, token: int) -> bytes:
        """The bytes of a token."""
        byte = self._bytes_of.get(token)
        if byte is not None:
            return byte
        text = self._tokens[token]
        return (text if self._types[token] in _VERBATIM else text.replace(SPACE, " ")).encode()


def _byte(text: str) -> list[int]:
    """The byte named by `<0xAB>`, in a list, or nothing."""
    found = _BYTE.fullmatch(text)
    return [int(found.group(1), 16)] if found else []
