"""Streaming detokenisation against Python's incremental decoder and against decoding at once."""

from __future__ import annotations

import codecs
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.models.text import StreamDecoder, Tokenizer
from tests.unit.models.text.small_vocabularies import gguf_metadata


def byte_tokenizer(add_space_prefix: bool = False) -> Tokenizer:
    """A SentencePiece vocabulary of single bytes, two control tokens and a few words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a", "<ud>"]
    types = [2, 3, 3, *[6] * 256, 1, 1, 1, 4]
    metadata = gguf_metadata("llama", tokens, types, scores=[0.0] * len(tokens), add_space_prefix=add_space_prefix)
    return Tokenizer.from_metadata(metadata)


def streamed(tokenizer: Tokenizer, ids: list[int], **options: bool) -> str:
    decoder = StreamDecoder(tokenizer, **options)
    return "".join([*map(decoder.push, ids), decoder.finish()])


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_come_out_as_from_pythons_decoder(data: bytes) -> None:
    decoder = StreamDecoder(byte_tokenizer())
    judge = codecs.getincrementaldecoder("utf-8")("replace")
    for byte in data:
        assert decoder.push(3 + byte) == judge.decode(bytes([byte]))
    assert decoder.finish() == judge.decode(b"", final=True)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_valid_text_shows_no_replacement_and_no_half_characters(text: str) -> None:
    decoder = StreamDecoder(byte_tokenizer())
    shown = [decoder.push(3 + byte) for byte in text.encode()]
    assert "".join(shown) == text
    assert all(len(piece) <= 1 for piece in shown)
    assert decoder.finish() == ""


def test_texts_survive_the_stream(byte_level: SimpleNamespace, texts: list[str]) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level.metadata)
    for text in texts:
        assert streamed(tokenizer, tokenizer.encode(text, parse_special=False)) == text


def test_control_tokens_are_left_out_unless_shown() -> None:
    tokenizer = byte_tokenizer()
    ids = [1, 261, 2, 262]
    assert streamed(tokenizer, ids) == "a<ud>"
    assert streamed(tokenizer, ids, show_control=True) == "<s>a</s><ud>"
    assert tokenizer.decode(ids, skip_special=True) == "a<ud>"


def test_a_control_token_inside_a_character_breaks_it_only_where_shown() -> None:
    ids = [3 + 0xC3, 2, 3 + 0xA9]
    assert streamed(byte_tokenizer(), ids) == "é"
    assert streamed(byte_tokenizer(), ids, show_control=True) == "\ufffd</s>\ufffd"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([260, 260], "a a"),
        ([259, 260], " a"),
        ([1, 260, 2, 260], "aa"),
        ([261, 260], "a a"),
        ([262, 260], "<ud> a"),
        ([3 + 0xC3, 3 + 0xA9, 260], "é a"),
    ],
)
def test_the_space_before_a_text_is_taken_away(ids: list[int], expected: str) -> None:
    tokenizer = byte_tokenizer(add_space_prefix=True)
    assert streamed(tokenizer, ids) == expected
    assert streamed(tokenizer, [260], continues=True) == " a"
    assert streamed(byte_tokenizer(), [260]) == " a"


def test_an_unfinished_character_ends_as_a_replacement() -> None:
    decoder = StreamDecoder(byte_tokenizer())
    assert [decoder.push(3 + byte) for byte in "🦙".encode()[:3]] == ["", "", ""]
    assert decoder.finish() == "\ufffd"
