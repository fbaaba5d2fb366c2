"""Types of tokens, and the tokens that every program knows as control: what begins or ends a turn, an answer or a gap.

In: tokens, their types, and the ids that a file declares. Out: such tokens, where a file has them as ordinary text, and
the tokens that end an answer. A name that may also be ordinary text, such
as HTML's `</s>`, counts only if the file says so by a type or a declared id.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from enum import IntEnum


class TokenType(IntEnum):
    """The kinds of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens that end a turn; the first one present is the end-of-turn token if the file names none.
END_OF_TURN = (
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)
# Further tokens after which a model's answer has ended.
END_OF_GENERATION = (
    "</s>",
    "<eos>",
    "[EOS]",
    "<turn|>",
    "<|tool_response>",
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|repo_name|>",
    "<|fim_repo|>",
    "<fim-repo>",
    "<reponame>",
    "<REPO>",
    "<|file_sep|>",
)
# If all of the first are in the vocabulary, the second only separates parts of an answer.
NOT_END_BESIDE = (
    (("<|return|>", "<|call|>"), "<|end|>"),
    (("<|calls|>", "<|flush|>"), "<|end|>"),
    (("<|tool_response>",), "</s>"),
    (("<|plamo:eos|>",), "</s>"),
)
MAY_BE_TEXT = frozenset(
    {"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<PAD>", "<REPO>", "<reponame>", "<fim-pad>"}
    | {"<fim_pad>", "<fim-repo>"}
)
_BEGINNINGS = (
    *("<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<|turn>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|start|>", "<|message|>", "<|channel|>", "<|fim_prefix|>"),
    *("<|fim_suffix|>", "<|fim_middle|>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
CERTAIN = frozenset((*END_OF_TURN, *END_OF_GENERATION, *_BEGINNINGS)) - MAY_BE_TEXT
_BRACKETED = re.compile(r"_?[<\[][^\s<>\[\]]+[>\]\[]")
_ORDINARY = (TokenType.UNDEFINED, TokenType.NORMAL)


def ordinary_marks(
    tokens: tuple[str, ...], types: Sequence[int], special: Container[str], declared: tuple[int | None, ...]
) -> list[int]:
    """Marks that a file has as ordinary tokens: those of certain names, and `declared` ids in brackets.

    `special`: the texts of tokens that the file has as special ones.
    """
    names = {name for name in CERTAIN.intersection(tokens) if name not in special}
    marks = [token for token, text in enumerate(tokens) if text in names] if names else []
    marks += [token for token in declared if token is not None and _BRACKETED.fullmatch(tokens[token])]
    return [token for token in marks if types[token] in _ORDINARY]


def end_of_generation(special: Mapping[str, int], declared: tuple[int | None, ...]) -> frozenset[int]:
    """Tokens that end an answer: special tokens (ids by text) that usually do, and those declared in the file.

    The first of `declared` is the file's end-of-sequence token, which ends an answer in any case.
    """
    ends = {special[name] for name in (*END_OF_TURN, *END_OF_GENERATION) if name in special}
    ends |= {token for token in declared if token is not None}
    for beside, name in NOT_END_BESIDE:
        if name in special and all(other in special for other in beside):
            ends.discard(special[name])
    return frozenset(ends | {token for token in declared[:1] if token is not None})
