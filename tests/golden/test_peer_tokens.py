"""llama.cpp cuts texts into the tokens that edgeinfer makes, where its converter's name is all that says how."""

from __future__ import annotations

import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.golden.goldens import DATA

FILES = {"afmoe": DATA / "converted" / "afmoe-bf16.gguf"}
TEXTS = (
    *("1", "12", "1234", "abc12 1234567 x 12345678", "  123", "\n\n4567", "tab\t99", "a 1b2c3333", "3.14159, (2024)"),
    *("12東京3456ไทย 789", "½ ²34 12²", "١٢٣٤٥", "don't 'tis it's", "naïve 東京 😀", "the cat  \n sat"),
)


@pytest.mark.peer
@pytest.mark.parametrize("name", FILES)
def test_llama_cpp_cuts_the_same_tokens(name: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    peer = llama_cpp.Llama(str(FILES[name]), vocab_only=True, verbose=False)
    try:
        with GGUFFile.open(FILES[name]) as file:
            tokenizer = Tokenizer.from_metadata(file.metadata)
            for text in TEXTS:
                expected = peer.tokenize(text.encode(), add_bos=False, special=False)
                assert tokenizer.encode(text, add_special=False) == expected, text
    finally:
        peer.close()
