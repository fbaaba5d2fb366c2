"""RWKV's and PLaMo's tokenizers against the plainest way to compute the same, and on small cases by hand."""

from __future__ import annotations

import random
import struct
from functools import cache
from typing import Any

import pytest

from edgeinfer.errors import BadGGUF
from edgeinfer.models.text import StreamDecoder, Tokenizer, TokenType
from tests.unit.models.text.small_vocabularies import gguf_metadata

WORDS = [b"the", b" the", b"\n\n", b"th", b"t", b"\xc3\xa9", b"\xe6\x9d", b"'s", b"\"'", b"\\", b"\\n", b"\x00\x01"]
PIECES = {"the": -2.5, "th": -1.25, "he": -1.25, "e": -3.0, "t": -2.0, "▁": -1.0, "éa": -0.5, "a": -4.0, " the": -1.0}


def rwkv(**more: Any) -> Tokenizer:
    """A vocabulary as llama.cpp's converter writes it: tokens as Python's notation of their bytes."""
    pieces = [bytes([byte]) for byte in range(256)] + [word for word in WORDS if len(word) > 1]
    tokens = ["<s>", *(repr(piece)[2:-1] for piece in pieces), "[PAD300]"]
    types = [TokenType.CONTROL, *([TokenType.NORMAL] * len(pieces)), TokenType.UNUSED]
    return Tokenizer.from_metadata(gguf_metadata("rwkv", tokens, types, bos_token_id=0, eos_token_id=0, **more))


def longest_first(tokenizer: Tokenizer, data: bytes) -> list[int]:
    ids = []
    while data:
        fitting = [token for token in range(1, tokenizer.n_tokens - 1) if data.startswith(tokenizer.piece(token))]
        ids.append(max(fitting, key=lambda token: len(tokenizer.piece(token))))
        data = data.removeprefix(tokenizer.piece(ids[-1]))
    return ids


def test_rwkv_takes_the_longest_token(texts: list[str]) -> None:
    tokenizer = rwkv()
    for text in (*texts[:60], "the the\n\n\n", "it's \"'x", "\\n\\", "\x00\x01", "杉é<s>"):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert ids == longest_first(tokenizer, text.encode()), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a<s>[PAD300]")[1] == 0


def test_rwkv_ends_at_a_blank_line_if_the_file_says_so() -> None:
    tokenizer = rwkv(eot_token_id=1 + 256 + 2)
    assert tokenizer.piece(259) == b"\n\n"
    assert tokenizer.vocabulary.end_of_generation == {0, 259}
    assert not tokenizer.vocabulary.is_control(259)
    decoder = StreamDecoder(tokenizer)
    assert "".join(map(decoder.push, tokenizer.encode("x\n\nthé", add_special=False))) == "x\n\nthé"


def test_rwkv_without_some_bytes() -> None:
    plain = Tokenizer.from_metadata(gguf_metadata("rwkv", ["a", "ab", "é"], [1, 1, 1]))
    assert plain.encode("abxaé", add_special=False) == [1, 0, 2]
    assert plain.unwritable("abxé") == "bx"
    known = Tokenizer.from_metadata(gguf_metadata("rwkv", ["a", "ab", "<unk>"], [1, 1, 2], unknown_token_id=2))
    assert known.encode("abxa", add_special=False) == [1, 2, 0]


def plamo(**more: Any) -> Tokenizer:
    special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    types = [2, 3, 3, 3] + [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(PIECES)
    scores = [0.0] * 260 + [struct.unpack("f", struct.pack("f", score))[0] for score in PIECES.values()]
    return Tokenizer.from_metadata(gguf_metadata("plamo2", tokens, types, scores=scores, **more))


def cheapest(text: str) -> tuple[str, ...]:
    """Pieces of the cheapest split; of equal ones the one whose first piece is longer, and so on."""

    @cache
    def best(at: int) -> tuple[int, tuple[str, ...]]:
        if at == len(text):
            return 0, ()
        found = []
        for size in range(len(text) - at, 0, -1):
            piece = text[at : at + size]
            if piece in PIECES:
                cost, rest = best(at + size)
                found.append((cost + round(-PIECES[piece] * 10_000), (piece, *rest)))
        cost, rest = best(at + 1)
        found.append((cost + 10_000_000, (text[at], *rest)))
        return min(found, key=lambda way: way[0])

    return best(0)[1]


def test_plamo_takes_the_cheapest_way() -> None:
    tokenizer = plamo()
    ids = {text: token for token, text in enumerate(tokenizer.vocabulary.tokens)}
    draw = random.Random(4)
    for _ in range(300):
        text = "".join(draw.choices(["the", *"the aé▁東\n", "\ufeff"], k=draw.randrange(1, 20)))
        wanted = []
        for piece in cheapest(text):
            wanted += [ids[piece]] if piece in PIECES else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
        found = tokenizer.encode(text, add_special=False, parse_special=False)
        assert found == wanted, text
        assert tokenizer.decode(found) == text


def test_plamos_control_tokens_cannot_be_spelled_out() -> None:
    tokenizer = plamo()
    assert tokenizer.encode("<|plamo:eos|>", add_special=False) == [2]
    assert 2 not in tokenizer.encode("<|plamo:eos|>", add_special=False, parse_special=False)
    assert tokenizer.vocabulary.end_of_generation == {2}


def test_plamo_without_bytes_or_scores() -> None:
    metadata = gguf_metadata("plamo2", ["<unk>", "<s>", "</s>", "a"], [2, 3, 3, 1], scores=[0, 0, 0, -1])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("axa", add_special=False) == [3, 0, 3]
    assert tokenizer.unwritable("axa") == "x"
    with pytest.raises(BadGGUF, match="scores is missing"):
        Tokenizer.from_metadata(gguf_metadata("plamo2", ["a"], [1]))


@pytest.mark.parametrize("model", ["rwkv", "plamo2"])
def test_tokens_of_thousands_of_characters_are_refused(model: str) -> None:
    """Their beginnings would take the square of their length in memory."""
    tokens, types = ["<unk>", "<s>", "</s>", "ab" * 10_000], [2, 3, 3, 1]
    with pytest.raises(BadGGUF, match="tokens of up to 20000 characters"):
        Tokenizer.from_metadata(gguf_metadata(model, tokens, types, scores=[0.0] * 4))
