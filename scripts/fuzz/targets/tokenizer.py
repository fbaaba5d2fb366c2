"""Texts that tokenizers of several kinds read and write again."""

from __future__ import annotations

from functools import cache

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from targets.gguf import DATA

NAMES = "llama-implicit-q8_0", "command-r-q8_0", "gemma3-q8_0", "bert-f32", "t5-f32", "rwkv6-f32"
TEXTS = (
    "The rain in Spain.\n\tdef f(x): return x ** 2",
    "Gr\u00fc\u00dfe, \u65e5\u672c\u8a9e, \u0639\u0631\u0628\u064a, \U0001f98a\U0001f469\u200d\U0001f467",
    "<s>[INST] 1,234.5 </s>\x00\ufeff",
)


@cache
def tokenizers() -> list[Tokenizer]:
    """Those of the tiny models that are there."""
    found = []
    for name in NAMES:
        if (path := DATA / f"{name}.gguf").is_file():
            with GGUFFile.open(path) as file:
                found.append(Tokenizer.from_metadata(file.metadata))
    return found


def seeds() -> list[bytes]:
    """Texts of several scripts."""
    return [text.encode() for text in TEXTS]


def run(data: bytes) -> None:
    """Encode and decode it, with and without special tokens."""
    text = data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace")[:8000]
    for tokenizer in tokenizers():
        for special in (False, True):
            tokenizer.decode(tokenizer.encode(text, parse_special=special))
