"""Token ids of whole vocabularies against recorded ids of the models' own tokenizers.

The files are a vocabulary in GGUF, texts with a separator line after each, and one line of ids per text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import StreamDecoder, Tokenizer

ROOT = Path(__file__).resolve().parents[2]
VOCABULARIES = Path(os.environ.get("EDGEINFER_TEST_DATA", ROOT / "../shared/data")) / "vocab"
NAMES = ("gpt-2", "llama-bpe", "llama-spm", "qwen2")
SEPARATOR = "\n__ggml_vocab_test__\n"

pytestmark = pytest.mark.skipif(not VOCABULARIES.is_dir(), reason=f"no vocabularies in {VOCABULARIES}")


@contextmanager
def opened(name: str) -> Iterator[Tokenizer]:
    with GGUFFile.open(VOCABULARIES / f"ggml-vocab-{name}.gguf") as file:
        yield Tokenizer.from_metadata(file.metadata)


def cases(name: str) -> list[tuple[str, list[int]]]:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    texts = path.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    ids = path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    # The file ends with a separator, so the last text is what comes after it: nothing.
    assert texts[-1] == ""
    return [(text, [int(token) for token in line.split()]) for text, line in zip(texts[:-1], ids, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_text(name: str) -> None:
    with opened(name) as tokenizer:
        assert len(cases(name)) > 40
        for text, ids in cases(name):
            assert tokenizer.encode(text, add_special=False) == ids, text
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", NAMES)
def test_streams_never_split_a_character(name: str) -> None:
    with opened(name) as tokenizer:
        for text, ids in cases(name):
            decoder = StreamDecoder(tokenizer)
            pieces = [decoder.push(token) for token in ids]
            assert decoder.finish() == ""
            assert "\ufffd" not in "".join(pieces)
            assert "".join(pieces) == text


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_are_one_token_each(name: str) -> None:
    with opened(name) as tokenizer:
        vocabulary = tokenizer.vocabulary
        assert vocabulary.eos_id in vocabulary.end_of_generation
        assert vocabulary.eos_id is not None
        text = vocabulary.tokens[vocabulary.eos_id]
        assert tokenizer.encode(text, add_special=False) == [vocabulary.eos_id]
        assert vocabulary.eos_id not in tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(tokenizer.encode(text, add_special=False, parse_special=False)) == text
