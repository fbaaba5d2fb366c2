"""Texts that tokenizers of several kinds read and write again: what can be written comes back as it was."""

from __future__ import annotations

from functools import cache

from tiny import DATA

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer

USUAL_BYTES = 300
NAMES = "llama-implicit-q8_0", "command-r-q8_0", "gemma3-q8_0", "embedding/bert-f32", "t5-f32", "rwkv6-f32", "phi3-q8_0"
EXACT = frozenset({"gpt2", "rwkv"})
"""Kinds that keep every text as it is."""
TEXTS = (
    "The rain in Spain.\n\tdef f(x): return x ** 2",
    "Gr\u00fc\u00dfe, \u65e5\u672c\u8a9e, \u0639\u0631\u0628\u064a, \U0001f98a\U0001f469\u200d\U0001f467",
    "<s>[INST] 1,234.5 </s>\x00\ufeff",
    "a" * 250,
    " " * 250,
    "\u0300" * 120,
    "'s" * 120,
    "1" * 250,
    "\n\r" * 120,
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
    """Texts of several scripts, and of one character."""
    return [text.encode() for text in TEXTS]


def run(data: bytes) -> None:
    """Encode and decode it, with and without special tokens."""
    text = data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace")
    for tokenizer in tokenizers():
        for special in (False, True):
            ids = tokenizer.encode(text, add_special=False, parse_special=special)
            back = tokenizer.decode(ids)
            if tokenizer.vocabulary.model in EXACT and not tokenizer.unwritable(text):
                assert back == text, f"{tokenizer.vocabulary.model}: {text!r:.80} comes back as {back!r:.80}"
