"""Texts that tokenizers of several kinds read and write again: what can be written comes back as it was."""

from __future__ import annotations

from functools import cache

from scratch import scratch
from tiny import DATA
from vocabularies import headers

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer

USUAL_BYTES = 300
NAMES = "llama-implicit-q8_0", "command-r-q8_0"
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
    """Those of tiny models, which are byte-level, and of small vocabularies of all other kinds."""
    folder, found = scratch(), []
    paths = [DATA / f"{name}.gguf" for name in NAMES]
    for number, header in enumerate(headers()):
        paths.append(folder / f"{number}.gguf")
        paths[-1].write_bytes(header)
    for path in paths:
        with GGUFFile.open(path) as file:
            found.append(Tokenizer.from_metadata(file.metadata))
    return found


def seeds() -> list[bytes]:
    """Texts of several scripts, and of one character."""
    return [bytes([number * 13 % 256]) + text.encode() for number, text in enumerate(TEXTS * 3)]


def run(data: bytes) -> None:
    """Encode and decode it, with and without special tokens; its first byte says by which tokenizer."""
    tokenizer, special = tokenizers()[(*data[:1], 0)[0] // 2 % len(tokenizers())], (*data[:1], 0)[0] % 2 == 1
    text = data[1:].decode("utf-8", "surrogateescape" if len(data) % 64 == 0 else "replace")
    ids = tokenizer.encode(text, add_special=False, parse_special=special)
    back = tokenizer.decode(ids)
    if tokenizer.vocabulary.model in EXACT and not tokenizer.unwritable(text):
        assert back == text, f"{tokenizer.vocabulary.model}: {text!r:.80} comes back as {back!r:.80}"
