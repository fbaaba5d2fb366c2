"""Token ids of whole vocabularies against recorded ids of the models' own tokenizers.

The files are a vocabulary in GGUF, texts with a separator line after each, and one line of ids per text. llama.cpp's
sources have more of them, in `models`, than the folder that is usually there.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import StreamDecoder, Tokenizer, Vocabulary, vocabulary_of

ROOT = Path(__file__).resolve().parents[2]
VOCABULARIES = Path(os.environ.get("EDGEINFER_TEST_DATA", ROOT / "../shared/data")) / "vocab"
EXACT = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "mpt"),
    *("phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
"""Vocabularies that keep every character of a text."""
NAMES = ("bert-bge", *EXACT)
COMPOSING = ("command-r", "mpt", "qwen2", "qwen35")
"""Those whose own tokenizers compose characters, which a vector of llama.cpp's for qwen35 does not."""
UNCOMPOSED = {"command-r": "smollm", "mpt": "gpt-2", "qwen2": "deepseek-r1-qwen"}
"""Pre-tokenizers that differ from theirs in that alone."""
SEPARATOR = "\n__ggml_vocab_test__\n"

pytestmark = pytest.mark.skipif(not VOCABULARIES.is_dir(), reason=f"no vocabularies in {VOCABULARIES}")


@contextmanager
def file_of(name: str) -> Iterator[GGUFFile]:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with GGUFFile.open(path) as file:
        yield file


@contextmanager
def opened(name: str) -> Iterator[Tokenizer]:
    with file_of(name) as file:
        yield Tokenizer.from_metadata(file.metadata)


def cases(name: str) -> list[tuple[str, list[int]]]:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    text = path.with_suffix(".gguf.inp").read_text(encoding="utf-8")
    ids = path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    texts = text.removesuffix(SEPARATOR).split(SEPARATOR)
    return [(text, [int(token) for token in line.split()]) for text, line in zip(texts, ids, strict=True)]


def is_composed(name: str, text: str) -> bool:
    return name not in COMPOSING or unicodedata.is_normalized("NFC", text)


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_text(name: str) -> None:
    with opened(name) as tokenizer:
        assert len(cases(name)) > 40
        for text, ids in cases(name):
            if is_composed(name, text):
                assert tokenizer.encode(text, add_special=False) == ids, text
            if name in EXACT:
                assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", COMPOSING)
def test_characters_are_composed_as_in_the_model_s_own_tokenizer(name: str) -> None:
    texts = [text for text, _ in cases(name)] if (VOCABULARIES / f"ggml-vocab-{name}.gguf").is_file() else []
    with opened(name) as tokenizer:
        for text in ("e\u0301te\u0301 A\u030a", "한국어", *(text for text in texts if not is_composed(name, text))):
            composed = unicodedata.normalize("NFC", text)
            assert tokenizer.encode(text) == tokenizer.encode(composed), text
            assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == composed


@pytest.mark.parametrize("name", UNCOMPOSED)
def test_composing_changes_nothing_else(name: str) -> None:
    with file_of(name) as file:
        vocabulary: Vocabulary = replace(vocabulary_of(file.metadata), pre=UNCOMPOSED[name])
        plain = Tokenizer.with_vocabulary(vocabulary, file.metadata)
        for text, ids in cases(name):
            assert plain.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("name", EXACT)
def test_streams_never_split_a_character(name: str) -> None:
    with opened(name) as tokenizer:
        for text, ids in cases(name):
            decoder = StreamDecoder(tokenizer)
            pieces = [decoder.push(token) for token in ids]
            assert decoder.finish() == ""
            assert "\ufffd" not in "".join(pieces)
            assert "".join(pieces) == text


@pytest.mark.parametrize("name", EXACT)
def test_special_tokens_are_one_token_each(name: str) -> None:
    with opened(name) as tokenizer:
        vocabulary = tokenizer.vocabulary
        assert vocabulary.eos_id in vocabulary.end_of_generation
        assert vocabulary.eos_id is not None
        text = vocabulary.tokens[vocabulary.eos_id]
        assert tokenizer.encode(text, add_special=False) == [vocabulary.eos_id]
        assert vocabulary.eos_id not in tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text
