"""Small vocabularies as the metadata of a GGUF file, and texts to try them on."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text import TokenType

DATA = Path(__file__).parent / "data"
SAMPLES = [
    "Hello world, hello wörld! The quick brown fox jumps over the lazy dog; it's 2024, isn't it?\n\n",
    "def main(argument):\n    return {'key': [1, 22, 333]}  # a comment\n\tpass\r\n",
    "нещо на Български 我想在 apple 工作 かな カナ 가나다 กขค हिन्दी",
    "🚀 (normal) 😶‍🌫️ (multiple) ✅ e\u0301 a\u0300\u0301   spaces      here",
]


class FakeMetadata(dict[str, Any]):
    """What a GGUF file's metadata offers, over a dict."""

    def _value(self, key: str) -> Any:
        if key not in self:
            raise BadGGUF(f"{key} is missing")
        return self[key]

    text = integer = flag = _value

    def strings(self, key: str) -> list[str]:
        return list(self._value(key))

    def numbers(self, key: str) -> np.ndarray[Any, Any]:
        return np.asarray(self._value(key))


def gguf_metadata(model: str, tokens: list[str], types: list[int], **more: Any) -> FakeMetadata:
    prefix = "tokenizer.ggml."
    values = {"model": model, "tokens": tokens, "token_type": types, **more}
    return FakeMetadata({prefix + name: value for name, value in values.items()})


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of pieces that tokenizers get wrong: scripts, marks, emoji, NUL, digits, long whitespace."""
    pieces = [*"".join(SAMPLES).split(" "), " ", "  ", "\n", "\t", "\r\n", " " * 33, "\n" * 9, "\x00", "\x7f", "\u200d"]
    pieces += [
        "\u0301",
        "\ufeff",
        "𝔘",
        "🇧🇬",
        "１２",
        "²³",
        "'S",
        "'ll",
        "▁",
        "▁▁",
        "Ġ",
        "\u00a0",
        "\u3000",
        "\u2028",
        "’",
        "<s>",
        "<0x41>",
    ]
    generator = random.Random(seed)
    return ["".join(generator.choices(pieces, k=generator.randrange(1, 30))) for _ in range(count)]


def trained_byte_level() -> SimpleNamespace:
    """A byte-level BPE with digits one by one: `metadata`, the its tokenizer `judge`, and `plain` without specials."""
    from tokenizers import Tokenizer, pre_tokenizers, trainers
    from tokenizers.models import BPE

    judge = Tokenizer(BPE())
    judge.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    judge.train_from_iterator(SAMPLES * 3, trainer)
    model = json.loads(judge.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    types = [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    plain = Tokenizer(BPE(model["vocab"], [tuple(merge.split(" ")) for merge in merges]))
    plain.pre_tokenizer = judge.pre_tokenizer
    metadata = gguf_metadata("gpt2", tokens, types, pre="smollm", merges=merges, bos_token_id=1, eos_token_id=2)
    return SimpleNamespace(metadata=metadata, judge=judge, plain=plain)


def trained_sentencepiece(**options: Any) -> SimpleNamespace:
    """A SentencePiece BPE trained on the samples with `options`: `metadata` and its processor, `judge`."""
    import sentencepiece

    model = io.BytesIO()
    defaults = {
        "vocab_size": 480,
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    lines = [line for text in SAMPLES for line in text.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 3), model_writer=model, **(defaults | options)
    )
    judge = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return SimpleNamespace(metadata=sentencepiece_metadata(judge, options), judge=judge)


def sentencepiece_metadata(judge: Any, options: dict[str, Any]) -> FakeMetadata:
    """What a converter to GGUF writes for a SentencePiece model."""
    user_defined = set(options.get("user_defined_symbols", []))
    tokens, types = [], []
    for token in range(judge.get_piece_size()):
        piece = judge.id_to_piece(token)
        kind = TokenType.NORMAL
        if judge.is_unknown(token):
            kind = TokenType.UNKNOWN
        elif judge.is_control(token):
            kind = TokenType.CONTROL
        elif judge.is_byte(token):
            kind = TokenType.BYTE
        elif judge.is_unused(token):
            kind = TokenType.UNUSED
        elif piece in user_defined:
            kind, piece = TokenType.USER_DEFINED, piece.replace("▁", " ")
        tokens.append(piece)
        types.append(int(kind))
    return gguf_metadata(
        "llama",
        tokens,
        types,
        scores=[judge.get_score(token) for token in range(len(tokens))],
        add_space_prefix=options.get("add_dummy_prefix", True),
    )
