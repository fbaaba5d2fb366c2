"""Vocabulary and tokenizer as llama.cpp reads them, for models whose tokenizer edgeinfer does not support.

In: a loaded model. Out: a `Vocabulary`, ids and pieces. Uses llama.cpp's functions only; reads no file.
"""

from __future__ import annotations

import ctypes
from typing import Any

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.text import TokenType, Vocabulary

FIRST_PIECE_BYTES = 64
NO_COUNT = -(1 << 31)
"""llama.cpp's return value if it cannot even count."""
KINDS = ("none", "llama", "gpt2", "bert", "t5", "rwkv", "plamo2")
"""Kinds of tokenizers by llama.cpp's number, under the names used in files."""
ATTRIBUTES = (
    (1 << 3, TokenType.CONTROL),
    (1 << 0, TokenType.UNKNOWN),
    (1 << 4, TokenType.USER_DEFINED),
    (1 << 1, TokenType.UNUSED),
    (1 << 5, TokenType.BYTE),
)
"""Bits of a token's attributes; the first one set counts."""


class LlamaText:
    """The tokenizer of one model."""

    def __init__(self, api: Any, model: Any) -> None:
        self._api = api
        self._vocab = api.llama_model_get_vocab(model)
        self.n_tokens = int(api.llama_vocab_n_tokens(self._vocab))

    def vocabulary(self) -> Vocabulary:
        """All tokens, and the special ones."""
        api, vocab = self._api, self._vocab
        kind = int(api.llama_vocab_type(vocab))
        tokens = range(self.n_tokens)
        types = tuple(_type(int(api.llama_vocab_get_attr(vocab, token))) for token in tokens)
        return Vocabulary(
            model=KINDS[kind] if kind < len(KINDS) else str(kind),
            pre="llama.cpp",
            tokens=tuple((api.llama_vocab_get_text(vocab, token) or b"").decode(errors="replace") for token in tokens),
            scores=(),
            types=types,
            bos_id=_known(api.llama_vocab_bos(vocab)),
            eos_id=_known(api.llama_vocab_eos(vocab)),
            eot_id=_known(api.llama_vocab_eot(vocab)),
            pad_id=_known(api.llama_vocab_pad(vocab)),
            unk_id=next((token for token in tokens if types[token] == TokenType.UNKNOWN), None),
            add_bos=bool(api.llama_vocab_get_add_bos(vocab)),
            add_eos=bool(api.llama_vocab_get_add_eos(vocab)),
            add_space_prefix=self._begins_with_space(),
            end_of_generation=frozenset(token for token in tokens if api.llama_vocab_is_eog(vocab, token)),
            strips_right=frozenset(),
        )

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text, as `models.text.Tokenizer.encode`. Raises EdgeInferError if llama.cpp cannot tokenize it."""
        data = text.encode()
        room = len(data) + 2
        while True:
            found = (ctypes.c_int32 * room)()
            n_tokens = self._api.llama_tokenize(self._vocab, data, len(data), found, room, add_special, parse_special)
            if n_tokens >= 0:
                return list(found[:n_tokens])
            if -n_tokens <= room or n_tokens == NO_COUNT:
                raise EdgeInferError(f"llama.cpp cannot tokenize this text of {len(data)} bytes")
            room = -n_tokens

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        room = FIRST_PIECE_BYTES
        while True:
            found = ctypes.create_string_buffer(room)
            n_bytes = self._api.llama_token_to_piece(self._vocab, token, found, room, 0, True)
            if n_bytes >= 0:
                return found.raw[:n_bytes]
            room = -n_bytes

    def _begins_with_space(self) -> bool:
        """Whether tokenizing puts a space before a text."""
        return b"".join(map(self.piece, self.encode("a", add_special=False, parse_special=False))).startswith(b" ")


def _type(attributes: int) -> int:
    return next((kind for bit, kind in ATTRIBUTES if attributes & bit), TokenType.NORMAL)


def _known(token: int) -> int | None:
    return token if token >= 0 else None
