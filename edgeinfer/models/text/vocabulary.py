"""The vocabulary of a model: its tokens, the kind of each, and which of them start, separate or end a text.

In: the `tokenizer.ggml.*` part of a GGUF file's metadata. Out: a frozen `Vocabulary`. Independent of how a text
becomes tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text.gap_tokens import Ids, gap_ids
from edgeinfer.models.text.pre_tokenizers import SPACED
from edgeinfer.models.text.token_types import END_OF_TURN, TokenType, end_of_generation, ordinary_marks

if TYPE_CHECKING:
    import numpy as np

GEMMA4 = "gemma4"
_ADDS_BOS = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
    | {"jina-v5-nano", "chameleon"}
)
# Special tokens of files that do not name them, by kind of tokenizer.
_DEFAULT_IDS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "plamo2": {"bos": 1, "eos": 2, "unknown": 0, "padding": 3},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
# Tokens that end an answer besides the end of a sequence and of a turn, and those around a gap to fill in.
_ENDS = ("eom", "fim_pad", "fim_rep", "fim_sep")
_GAP = ("fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle")
_LISTS = {"suppress": "suppress_tokens", "eos": "eos_token_ids"}
MOST_BEGINNINGS = 32 << 20
"""Characters of all beginnings of all tokens: published vocabularies have a tenth of that."""
_ADDED = -1000.0
"""The score that converters give to tokens that a SentencePiece vocabulary does not have itself."""
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


_SPECIAL = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN})


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """Tokens by id. `model` is the kind of tokenizer ("gpt2", "llama", "bert", …), `pre` names its pre-tokenizer.

    `scores` is empty if the file has none. `strips_right` contains the tokens that absorb the whitespace after them,
    `suppressed` those that an answer never contains, `gap` those around a gap to fill in (see `GapTokens`).
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
    suppressed: frozenset[int] = frozenset()
    gap: Ids = ()

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def is_control(self, token: int) -> bool:
        """Whether `token` steers the model and is not text itself (control and unknown tokens)."""
        return self.types[token] in (TokenType.CONTROL, TokenType.UNKNOWN)

    def begins_anew(self, token: int) -> bool:
        """Whether what follows `token` is tokenized as a text of its own.

        So it is after control tokens, and after tokens that were added to a SentencePiece vocabulary later, but not
        after user-defined tokens that it was trained with, which SentencePiece reads as part of the text.
        """
        added = self.types[token] == TokenType.USER_DEFINED and bool(self.scores) and self.scores[token] <= _ADDED
        return added or self.is_control(token)

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

        Raises BadGGUF if the token list is missing or the lists beside it are shorter or of another type. A special
        token id outside the vocabulary counts as absent, because some files write -1 there.
        """
        key = "tokenizer.ggml.tokens"
        tokens = tuple(metadata.strings(key)) if key in metadata else ()
        if not tokens:
            raise BadGGUF(f"{key} is missing or empty: the file holds no vocabulary")
        scores: tuple[float, ...] = tuple(_numbers(metadata, "tokenizer.ggml.scores", "iuf", len(tokens)).tolist())
        model = metadata.text("tokenizer.ggml.model") if "tokenizer.ggml.model" in metadata else ""
        pre = metadata.text("tokenizer.ggml.pre") if "tokenizer.ggml.pre" in metadata else "default"
        pre = GEMMA4 if model == GEMMA4 else pre
        is_spm, is_bert, is_gemma = model == "llama", model == "bert", pre in SPACED and pre != "sarvam-moe"
        ids = _ids(metadata, model, len(tokens))
        types, special = _types(metadata, tokens, tuple(ids.values()))
        eot_id = ids["eot"] if ids["eot"] is not None else next((special[t] for t in END_OF_TURN if t in special), None)
        adds_bos = is_spm or is_bert or pre in _ADDS_BOS
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
            add_bos=(_flag(metadata, "add_bos_token", adds_bos) or is_gemma) and ids["bos"] is not None,
            add_eos=_flag(metadata, "add_eos_token", is_bert or model == "t5") and ids["eos"] is not None,
            add_space_prefix=_flag(metadata, "add_space_prefix", is_spm),
            end_of_generation=end_of_generation(
                special, (ids["eos"], eot_id, *(ids[name] for name in _ENDS), *_listed(metadata, "eos", len(tokens)))
            ),
            strips_right=_strips_right(metadata, special) if is_spm else frozenset(),
            suppressed=frozenset(_listed(metadata, "suppress", len(tokens))),
            gap=gap_ids(ids, special),
        )


Piece = TypeVar("Piece", str, bytes)


def beginnings_of(pieces: Collection[Piece]) -> frozenset[Piece]:
    """What tokens begin with, themselves included. Raises BadGGUF for tokens whose beginnings take too much memory."""
    if sum(len(piece) * (len(piece) + 1) // 2 for piece in pieces) > MOST_BEGINNINGS:
        raise BadGGUF(
            f"the vocabulary has tokens of up to {max(map(len, pieces))} characters, far more than words have"
        )
    return frozenset(piece[:size] for piece in pieces for size in range(1, len(piece) + 1))


def _numbers(metadata: TokenizerMetadata, key: str, kinds: str, n_tokens: int) -> np.ndarray[Any, Any]:
    """The first `n_tokens` numbers, of dtypes `kinds`, of a list beside the tokens; empty if the list is absent."""
    import numpy as np  # not loaded before a file is read

    if key not in metadata:
        return np.empty(0, np.int32)
    numbers = metadata.numbers(key)
    if numbers.dtype.kind not in kinds:
        raise BadGGUF(f"{key} must be an array of {'integers' if kinds == 'iu' else 'numbers'}, not of {numbers.dtype}")
    if len(numbers) < n_tokens:
        raise BadGGUF(f"{key} has {len(numbers)} entries for {n_tokens} tokens")
    if numbers.dtype.kind == "f" and np.isnan(numbers).any():
        raise BadGGUF(f"{key} holds NaN; a score must be a number")
    return numbers[:n_tokens]


def _types(
    metadata: TokenizerMetadata, tokens: tuple[str, ...], declared: tuple[int | None, ...]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """The type of each token, and the ids of special tokens by their text; for equal texts the first."""
    numbers = _numbers(metadata, "tokenizer.ggml.token_type", "iu", len(tokens))
    types = numbers.tolist() or [int(TokenType.NORMAL)] * len(tokens)
    ids = [token for kind in _SPECIAL for token in (numbers == kind).nonzero()[0].tolist()]
    special = {tokens[token]: token for token in sorted(ids, reverse=True)}
    for mark in reversed(ordinary_marks(tokens, types, special, declared)):
        types[mark] = int(TokenType.CONTROL)
        special[tokens[mark]] = mark
    if len(numbers) and (numbers.min() < min(TokenType) or numbers.max() > max(TokenType)):
        types = [kind if min(TokenType) <= kind <= max(TokenType) else int(TokenType.UNDEFINED) for kind in types]
    return tuple(types), special


def _ids(metadata: TokenizerMetadata, model: str, n_tokens: int) -> dict[str, int | None]:
    """The special tokens that a file declares, by their names there; for BERT, what begins and ends a text."""
    defaults = _DEFAULT_IDS.get(model, {})
    names = ("bos", "eos", "eot", *_ENDS, *_GAP, "padding", "unknown")
    ids = {name: _token_id(metadata, name, n_tokens, defaults.get(name)) for name in names}
    if model == "bert":
        ids["bos"] = _token_id(metadata, "cls", n_tokens, None) if ids["bos"] is None else ids["bos"]
        ids["eos"] = _token_id(metadata, "seperator", n_tokens, None)
    return ids


def _listed(metadata: TokenizerMetadata, name: str, n_tokens: int) -> list[int]:
    """The tokens of a list: `suppress_tokens`, and Ollama's `eos_token_ids`."""
    key = f"tokenizer.ggml.{_LISTS[name]}"
    tokens = metadata.numbers(key) if key in metadata else ()
    if not isinstance(tokens, tuple) and tokens.dtype.kind not in "iu":
        raise BadGGUF(f"{key} must be an array of token ids, not of {tokens.dtype}")
    return [int(token) for token in tokens if 0 <= token < n_tokens]


def _token_id(metadata: TokenizerMetadata, name: str, n_tokens: int, default: int | None) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token = metadata.integer(key) if key in metadata else default
    return token if token is not None and 0 <= token < n_tokens else None


def _flag(metadata: TokenizerMetadata, name: str, default: bool) -> bool:
    key = f"tokenizer.ggml.{name}"
    return metadata.flag(key) if key in metadata else default


def _strips_right(metadata: TokenizerMetadata, special: Mapping[str, int]) -> frozenset[int]:
    key = "general.architecture"
    if key not in metadata or metadata.text(key) != "phi3":
        return frozenset()
    return frozenset(token for name, token in special.items() if name not in _PHI3_KEEPS_SPACE)
