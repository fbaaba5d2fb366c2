"""The vocabulary of a GGUF file's metadata."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text import Tokenizer, TokenType, Vocabulary
from tests.unit.models.text.small_vocabularies import gguf_metadata


def ends(tokens: list[str], types: list[int] | None = None, **more: Any) -> list[str]:
    vocabulary = Vocabulary.from_metadata(gguf_metadata("gpt2", tokens, types or [3] * len(tokens), **more))
    return [tokens[token] for token in sorted(vocabulary.end_of_generation)]


@pytest.mark.parametrize(
    "name", ["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<|tool_response>"]
)
@pytest.mark.parametrize("kind", [TokenType.UNDEFINED, TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED])
def test_usual_names_end_a_generation(name: str, kind: int) -> None:
    assert ends(["a", name], [1, kind]) == [name]


@pytest.mark.parametrize("name", ["</s>", "<eos>", "[EOS]", "<EOT>", "<REPO>", "<fim_pad>"])
def test_names_that_may_be_text_count_if_the_file_says_so(name: str) -> None:
    assert ends(["a", name]) == [name]
    assert ends(["a", name], [1, 1]) == []
    assert ends(["a", name], [1, 1], eos_token_id=1) == [name]


def test_marks_of_ordinary_type_are_read_as_one_token() -> None:
    tokens = ["a", "<|im_start|>", "<|im_end|>", "</s>", "\n\n"]
    metadata = gguf_metadata("gpt2", tokens, [1] * 5, pre="gpt-2", merges=[], eos_token_id=3, eot_token_id=4)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("a<|im_start|>a<|im_end|></s>a", add_special=False) == [0, 1, 0, 2, 3, 0]
    assert tokenizer.encode("a<|im_end|>", add_special=False, parse_special=False) == [0]  # it has no letters
    assert [tokenizer.vocabulary.is_control(token) for token in range(5)] == [False, True, True, True, False]
    assert tokenizer.vocabulary.end_of_generation == {2, 3, 4}


@pytest.mark.parametrize("name", ["eom", "fim_pad", "fim_rep", "fim_sep"])
def test_further_declared_ids_end_a_generation(name: str) -> None:
    assert ends(["a", "b", "c"], [1, 1, 1], eos_token_id=1, **{f"{name}_token_id": 2}) == ["b", "c"]


@pytest.mark.parametrize("name", ["fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle"])
def test_marks_around_a_gap_are_control_tokens_that_end_nothing(name: str) -> None:
    metadata = gguf_metadata("gpt2", ["a", "<PRE>"], [1, 1], **{f"{name}_token_id": 1})
    vocabulary = Vocabulary.from_metadata(metadata)
    assert vocabulary.is_control(1)
    assert not vocabulary.end_of_generation


def test_suppressed_tokens() -> None:
    metadata = gguf_metadata("gpt2", ["a", "b"], [1, 1], suppress_tokens=np.array([1, 7, -1], np.int32))
    assert Vocabulary.from_metadata(metadata).suppressed == {1}
    metadata["tokenizer.ggml.suppress_tokens"] = np.array([0.5])
    with pytest.raises(BadGGUF, match="suppress_tokens must be an array of token ids"):
        Vocabulary.from_metadata(metadata)


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
