"""Small vocabularies of all kinds, as headers of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from scratch import scratch

WORDS = (
    "the",
    "th",
    "he",
    "in",
    "er",
    "an",
    "rain",
    "Spain",
    "def",
    "it",
    "s",
    "'s",
    "é",
    "日本",
    "  ",
    "\n\n",
    "a",
    "e",
    "t",
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def sentencepiece(kind: str = "llama") -> dict[str, Any]:
    """Scores, tokens of bytes, ▁ for a space; t5 is the unigram kind."""
    words = [word.replace(" ", "▁") for word in ("▁", *WORDS, *(f" {word}" for word in WORDS))]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *dict.fromkeys(words)]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    types += [NORMAL] * (len(tokens) - len(types))
    scores = [-float(number % 17) for number in range(len(tokens))]
    return {"model": kind, "tokens": tokens, "token_type": types, "scores": scores, "unknown_token_id": 0}


def rwkv() -> dict[str, Any]:
    """Tokens as Python's notation of their bytes, the longest first."""
    pieces = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS if len(word.encode()) > 1]
    tokens = ["<s>", *(repr(piece)[2:-1] for piece in pieces)]
    return {"model": "rwkv", "tokens": tokens, "token_type": [CONTROL, *[NORMAL] * len(pieces)]}


def plamo() -> dict[str, Any]:
    """The cheapest split by scores."""
    return {**sentencepiece("plamo2"), "bos_token_id": 1}


def word_piece() -> dict[str, Any]:
    """BERT's: ▁ begins a word."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,'é"
    tokens = [
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *(f"▁{letter}" for letter in letters),
        *letters,
        *(f"▁{word}" for word in WORDS),
    ]
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3)
    ends = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return {"model": "bert", "tokens": list(dict.fromkeys(tokens)), "token_type": types, **ends}


KINDS = (sentencepiece, lambda: sentencepiece("t5"), rwkv, plamo, word_piece)


def headers() -> list[bytes]:
    """A header of each kind, without tensors."""
    return [_header(kind()) for kind in KINDS]


def _header(fields: dict[str, Any]) -> bytes:
    path = Path(scratch()) / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in fields.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path.read_bytes()
