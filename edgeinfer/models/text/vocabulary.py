"""The vocabulary of a model: its tokens, the kind of each, and which of them start, separate or end a text.

In: the `tokenizer.ggml.*` part of a GGUF file's metadata. Out: a frozen `Vocabulary`; a text as a sequence of plain
stretches and special tokens: the leftmost match wins, and at each position the longest token, as in SentencePiece and
the `tokenizers` package. Independent of how plain text becomes tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from edgeinfer.errors import BadGGUF

if TYPE_CHECKING:
    import numpy as np

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
    "<|repo_name|>",
    "<|file_sep|>",
)
# If all of the first are in the vocabulary, the second only separates parts of an answer.
NOT_END_BESIDE = (
    (("<|return|>", "<|call|>"), "<|end|>"),
    (("<|calls|>", "<|flush|>"), "<|end|>"),
    (("<|tool_response>",), "</s>"),
)
_ADDS_BOS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
)
# The special tokens of Phi-3's SentencePiece vocabulary absorb the whitespace after them, except these.
_PHI3_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})


class TokenizerMetadata(Protocol):
    """The GGUF metadata needed: presence of a key and typed values."""

    def __contains__(self, key: object, /) -> bool: ...
    def text(self, key: str, /) -> str: ...
    def integer(self, key: str, /) -> int: ...
    def flag(self, key: str, /) -> bool: ...
    def strings(self, key: str, /) -> list[str]: ...
    def numbers(self, key: str, /) -> np.ndarray[Any, Any]: ...


class TokenType(IntEnum):
    """The kinds of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN})


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Tokens by id. `model` is the kind of tokenizer ("gpt2", "llama", "bert", "t5"), `pre` names its pre-tokenizer.

    `scores` is empty if the file has none. `strips_right` contains the tokens that absorb the whitespace after them.
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    pad_id: int | None
    unk_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    end_of_generation: frozenset[int]
    strips_right: frozenset[int]

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def is_control(self, token: int) -> bool:
        """Whether `token` steers the model and is not text itself (control and unknown tokens)."""
        return self.types[token] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def special_ids(self) -> list[int]:
        """Control, unknown and user-defined tokens, which are found in a text before it is tokenized."""
        return [token for token, kind in enumerate(self.types) if kind in _SPECIAL]

    def special_texts(self) -> dict[str, str]:
        """The names chat templates use for special tokens (`bos_token`, `eos_token`, …), with their text."""
        ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "unk_token": self.unk_id, "pad_token": self.pad_id}
        return {name: self.tokens[token] for name, token in ids.items() if token is not None}

    @classmethod
    def from_metadata(cls, metadata: TokenizerMetadata) -> Vocabulary:
        """The vocabulary in a GGUF file.

        Raises BadGGUF if the token list is missing or the lists beside it are shorter. A special token id outside the
        vocabulary counts as absent, because some files write -1 there.
        """
        key = "tokenizer.ggml.tokens"
        tokens = tuple(metadata.strings(key)) if key in metadata else ()
        if not tokens:
            raise BadGGUF(f"{key} is missing or empty: the file holds no vocabulary")
        scores: tuple[float, ...] = tuple(_numbers(metadata, "tokenizer.ggml.scores", len(tokens)))
        types = tuple(_numbers(metadata, "tokenizer.ggml.token_type", len(tokens))) or (TokenType.NORMAL,) * len(tokens)
        model = metadata.text("tokenizer.ggml.model") if "tokenizer.ggml.model" in metadata else ""
        pre = metadata.text("tokenizer.ggml.pre") if "tokenizer.ggml.pre" in metadata else "default"
        is_spm, is_bert = model == "llama", model == "bert"
        ids = {
            name: _token_id(metadata, name, len(tokens), default)
            for name, default in (("bos", 1), ("eos", 2), ("eot", None), ("padding", None), ("unknown", 0))
        }
        if is_bert:  # a text begins with one and ends with the other
            ids["bos"] = _token_id(metadata, "cls", len(tokens), None) if ids["bos"] is None else ids["bos"]
            ids["eos"] = _token_id(metadata, "seperator", len(tokens), None)
        special = _names(tokens, types)
        eot_id = ids["eot"] if ids["eot"] is not None else next((special[t] for t in END_OF_TURN if t in special), None)
        return cls(
            model=model,
            pre=pre,
            tokens=tokens,
            scores=scores,
            types=types,
            bos_id=ids["bos"],
            eos_id=ids["eos"],
            eot_id=eot_id,
            pad_id=ids["padding"],
            unk_id=ids["unknown"],
            add_bos=_flag(metadata, "add_bos_token", is_spm or is_bert or pre in _ADDS_BOS) and ids["bos"] is not None,
            add_eos=_flag(metadata, "add_eos_token", is_bert) and ids["eos"] is not None,
            add_space_prefix=_flag(metadata, "add_space_prefix", is_spm),
            end_of_generation=end_of_generation(special, (ids["eos"], eot_id)),
            strips_right=_strips_right(metadata, special) if is_spm else frozenset(),
        )


def _numbers(metadata: TokenizerMetadata, key: str, n_tokens: int) -> list[Any]:
    """The first `n_tokens` numbers of a list parallel to the tokens; empty if the list is absent."""
    if key not in metadata:
        return []
    numbers: list[Any] = metadata.numbers(key).tolist()
    if len(numbers) < n_tokens:
        raise BadGGUF(f"{key} has {len(numbers)} entries for {n_tokens} tokens")
    return numbers[:n_tokens]


def _token_id(metadata: TokenizerMetadata, name: str, n_tokens: int, spm_default: int | None) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key in metadata:
        token: int | None = metadata.integer(key)
    else:
        is_spm = "tokenizer.ggml.model" in metadata and metadata.text("tokenizer.ggml.model") == "llama"
        token = spm_default if is_spm else None
    return token if token is not None and 0 <= token < n_tokens else None


def _flag(metadata: TokenizerMetadata, name: str, default: bool) -> bool:
    key = f"tokenizer.ggml.{name}"
    return metadata.flag(key) if key in metadata else default


def _names(tokens: tuple[str, ...], types: tuple[int, ...]) -> dict[str, int]:
    """Ids of the special tokens by their text; for equal texts the first."""
    return {tokens[token]: token for token in reversed(range(len(tokens))) if types[token] in _SPECIAL}


def end_of_generation(special: Mapping[str, int], declared: tuple[int | None, ...]) -> frozenset[int]:
    """Tokens that end an answer: special tokens (ids by text) that usually do, and those declared in the file."""
    found = {special[name] for name in (*END_OF_TURN, *END_OF_GENERATION) if name in special}
    for beside, name in NOT_END_BESIDE:
        if name in special and all(other in special for other in beside):
            found.discard(special[name])
            declared = tuple(token for token in declared[:1] if token is not None)
    return frozenset(found | {token for token in declared if token is not None})


def _strips_right(metadata: TokenizerMetadata, special: Mapping[str, int]) -> frozenset[int]:
    key = "general.architecture"
    if key not in metadata or metadata.text(key) != "phi3":
        return frozenset()
    return frozenset(token for name, token in special.items() if name not in _PHI3_KEEPS_SPACE)


class SpecialTokens:
    """The special tokens of a vocabulary, matched against text.

    User-defined tokens are always matched, control and unknown tokens only if `parse_special` is set.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = vocabulary.special_ids()
        user_defined = [token for token in ids if vocabulary.types[token] == TokenType.USER_DEFINED]
        self._all = _Matcher({vocabulary.tokens[token]: token for token in reversed(ids)})
        self._user_defined = _Matcher({vocabulary.tokens[token]: token for token in reversed(user_defined)})
        self._strips_right = vocabulary.strips_right

    def split(self, text: str, *, parse_special: bool) -> Iterator[str | int]:
        """`text` as non-empty plain stretches and token ids, in order."""
        matcher = self._all if parse_special else self._user_defined
        plain_from = 0
        for start, end, token in matcher.matches(text):
            if start < plain_from:
                continue
            if start > plain_from:
                yield text[plain_from:start]
            yield token
            plain_from = end
            if token in self._strips_right:
                plain_from += len(text[end:]) - len(text[end:].lstrip(" \t\n\v\f\r"))
        if plain_from < len(text):
            yield text[plain_from:]


class _Matcher:
    """Finds the given texts: scans for their first characters, then looks up by length, longest first."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = {text: token for text, token in ids.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._first = re.compile("[" + "".join(map(re.escape, sorted(lengths))) + "]") if lengths else None

    def matches(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, token) of every match, left to right, none overlapping."""
        position = 0
        while self._first is not None and (found := self._first.search(text, position)):
            start = found.start()
            position = start + 1
            for size in self._lengths[found.group()]:
                token = self._ids.get(text[start : start + size])
                if token is not None:
                    position = start + size
                    yield start, position, token
                    break
