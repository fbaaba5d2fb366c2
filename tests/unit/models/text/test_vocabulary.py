"""The vocabulary of a GGUF file's metadata."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from small_vocabularies import gguf_metadata

from edgeinfer.models.text import Vocabulary


def ends(tokens: list[str], types: list[int] | None = None, **more: Any) -> list[str]:
    vocabulary = Vocabulary.from_metadata(gguf_metadata("gpt2", tokens, types or [3] * len(tokens), **more))
    return [tokens[token] for token in sorted(vocabulary.end_of_generation)]


@pytest.mark.parametrize(
    "name", ["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<eos>"]
)
def test_usual_names_end_a_generation(name: str) -> None:
    assert ends(["a", name]) == [name]
    assert ends(["a", name], [1, 1]) == []


def test_declared_ids_end_a_generation() -> None:
    assert ends(["a", "b", "c"], [1, 1, 1], eos_token_id=1, eot_token_id=2) == ["b", "c"]


def test_parts_of_an_answer_do_not_end_it() -> None:
    assert ends(["<|end|>", "<|return|>", "<|call|>"]) == ["<|return|>", "<|call|>"]
    assert ends(["<|end|>", "<|return|>"]) == ["<|end|>", "<|return|>"]
    assert ends(["</s>", "<|tool_response>", "<turn|>"]) == ["<|tool_response>", "<turn|>"]


def test_ids_outside_the_vocabulary_count_as_absent() -> None:
    metadata = gguf_metadata("gpt2", ["a"], [1], eos_token_id=-1, bos_token_id=4294967295, add_bos_token=True)
    vocabulary = Vocabulary.from_metadata(metadata)
    assert (vocabulary.eos_id, vocabulary.bos_id, vocabulary.add_bos) == (None, None, False)


def test_fields() -> None:
    metadata = gguf_metadata(
        "gpt2", ["a", "<s>", "</s>", "<|im_end|>"], [1, 3, 3, 3], pre="llama-bpe", bos_token_id=1, eos_token_id=2
    )
    vocabulary = Vocabulary.from_metadata(metadata)
    assert (vocabulary.n_tokens, vocabulary.pre, vocabulary.add_bos, vocabulary.add_eos) == (
        4,
        "llama-bpe",
        True,
        False,
    )
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.eot_id, vocabulary.pad_id) == (1, 2, 3, None)
    assert vocabulary.special_texts() == {"bos_token": "<s>", "eos_token": "</s>"}
    assert [vocabulary.is_control(token) for token in range(4)] == [False, True, True, True]


def test_importing_the_room_loads_no_tokenizer_and_no_template_engine() -> None:
    code = "import sys, edgeinfer.models.text; print({'tokenizers', 'jinja2', 'numpy'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
