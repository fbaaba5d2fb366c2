r"""RWKV's tokenizer: the longest token at each place, from the left, over bytes.

In: text without special tokens. Out: ids. GGUF files write a token's bytes as Python does, with escapes such as `\n`
and `\xff`. Does not handle special tokens.
"""

from __future__ import annotations

import re

from edgeinfer.models.text.token_types import TokenType
from edgeinfer.models.text.vocabulary import Vocabulary, beginnings_of

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
_IN_TEXT = (TokenType.NORMAL, TokenType.UNDEFINED, TokenType.USER_DEFINED, TokenType.BYTE)


class GreedyEncoder:
    """Encodes plain text with the tokens of a vocabulary; one instance can be used by several threads.

    Raises BadGGUF for tokens that are far too long.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        kinds = vocabulary.types
        self._pieces = tuple(map(_unescaped, vocabulary.tokens))
        in_text = [token for token in reversed(range(vocabulary.n_tokens)) if kinds[token] in _IN_TEXT]
        self._ids = {self._pieces[token]: token for token in in_text if self._pieces[token]}
        self._beginnings = beginnings_of(self._ids)
        self._unknown = [] if vocabulary.unk_id is None else [vocabulary.unk_id]

    def encode(self, text: str, *, starts: bool) -> list[int]:
        """Ids of `text`, independent of its position. Bytes without a token become the unknown one, if there is one."""
        data, at, ids = text.encode(), 0, []
        beginnings, tokens = self._beginnings, self._ids
        while at < len(data):
            end, longest = at + 1, at
            token = None
            while end <= len(data) and (piece := data[at:end]) in beginnings:
                if piece in tokens:
                    token, longest = tokens[piece], end
                end += 1
            ids += self._unknown if token is None else [token]
            at = max(longest, at + 1)
        return ids

    def unwritable(self, text: str) -> str:
        """The characters of `text` with bytes that no token stands for by themselves."""
        return "".join(character for character in text if not self._writes(character.encode()))

    def piece(self, token: int) -> bytes:
        """The bytes that `token` stands for."""
        return self._pieces[token]

    def _writes(self, data: bytes) -> bool:
        return data in self._ids or all(data[at : at + 1] in self._ids for at in range(len(data)))


def _unescaped(text: str) -> bytes:
    """The bytes of a token as written in a file."""
    data = text.encode()
    return data if b"\\" not in data else _ESCAPE.sub(_meaning, data)


def _meaning(escape: re.Match[bytes]) -> bytes:
    number, letter = escape.groups()
    return bytes([int(number, 16)]) if number else _LETTERS.get(letter, letter)
