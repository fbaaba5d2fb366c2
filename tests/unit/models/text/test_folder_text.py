"""tokenizer.json and the settings beside it, against the same vocabulary read from a GGUF file, and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeinfer.errors import EdgeInferError, UnsupportedModel
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer, TokenType
from edgeinfer.models.text.tokenizer_file import FolderText, tokenizer_files
from tests.unit.models.text.small_vocabularies import FakeMetadata

TEXTS = ("Hello the inn! 123", "<|im_start|>user\nthe then<|im_end|>\n", "  naïve \n\n\tx=1; 日本", "")


def test_ids_pieces_and_ends_are_those_of_the_file_it_was_made_from(tiny_model: Path, tmp_path: Path) -> None:
    with GGUFFile.open(tiny_model) as file:
        ours, files = Tokenizer.from_metadata(file.metadata), tokenizer_files(file.metadata, 512)
    (tmp_path / "tokenizer.json").write_text(files.tokenizer, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(files.settings, encoding="utf-8")
    text = FolderText(tmp_path)
    found, expected = text.vocabulary(), ours.vocabulary
    assert (found.tokens, found.types) == (expected.tokens, expected.types)
    for name in ("bos_id", "eos_id", "eot_id", "add_bos", "add_eos", "end_of_generation", "add_space_prefix"):
        assert getattr(found, name) == getattr(expected, name), name
    for each in TEXTS:
        for parse in (True, False):
            wanted = ours.encode(each, parse_special=parse)
            assert text.encode(each, add_special=True, parse_special=parse) == wanted
    assert [text.piece(token) for token in range(found.n_tokens)] == [ours.piece(t) for t in range(ours.n_tokens)]
    with pytest.raises(EdgeInferError, match="outside the vocabulary"):
        text.piece(found.n_tokens)


def spaced(folder: Path) -> Path:
    """A tokenizer that writes a space as ▁ and bytes as <0x..>, begins texts with <s>, and leaves id 8 out."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0xC3>": 3, "<0xA9>": 4, "▁": 5, "a": 6, "▁a": 7, "b": 9}
    made = Tokenizer(models.BPE(vocab=words, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    made.post_processor = processors.TemplateProcessing("<s> $A", pair=None, special_tokens=[("<s>", 1)])
    (folder / "tokenizer.json").write_text(made.to_str(), encoding="utf-8")
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_tokenizer_that_writes_spaces(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 77]}')
    text = FolderText(spaced(tmp_path))
    found = text.vocabulary()
    assert (found.n_tokens, found.bos_id, found.eos_id, found.unk_id) == (10, 1, 2, 0)
    assert (found.add_bos, found.add_eos, found.add_space_prefix) == (True, False, True)
    assert found.end_of_generation == {2, 9}
    wanted = (TokenType.BYTE, TokenType.UNUSED, TokenType.UNKNOWN, TokenType.CONTROL)
    assert tuple(found.types[token] for token in (3, 8, 0, 2)) == wanted
    assert text.encode("a é", add_special=True, parse_special=True) == [1, 7, 5, 3, 4]
    assert b"".join(map(text.piece, [7, 5, 3, 4])).decode() == " a é"
    assert text.encode("</s>", add_special=False, parse_special=True) == [2]
    assert 2 not in text.encode("</s>", add_special=False, parse_special=False)


def test_a_token_ends_answers_even_if_it_stands_for_the_unknown_too(tmp_path: Path) -> None:
    """As in SmolLM2, whose <|endoftext|> is both, and whose eos_token is another one."""
    settings = {"eos_token": "<s>", "unk_token": "</s>"}
    (spaced(tmp_path) / "tokenizer_config.json").write_text(json.dumps(settings))
    found = FolderText(tmp_path).vocabulary()
    assert found.types[2] == TokenType.UNKNOWN
    assert found.end_of_generation == {1, 2}


def test_suppressed_tokens_of_the_settings(tmp_path: Path) -> None:
    (spaced(tmp_path) / "generation_config.json").write_text(json.dumps({"suppress_tokens": [7, 900]}))
    assert FolderText(tmp_path).vocabulary().suppressed == {7}


def test_a_tokenizer_that_composes_characters_is_written_so(byte_level: SimpleNamespace) -> None:
    from tokenizers import Tokenizer as Peer

    for pre in ("qwen2", "smollm"):
        metadata = FakeMetadata({**byte_level.metadata, "tokenizer.ggml.pre": pre})
        written = Peer.from_str(tokenizer_files(metadata, 512).tokenizer)
        ours = Tokenizer.from_metadata(metadata)
        for each in ("e\u0301 한", "é 한"):
            assert written.encode(each, add_special_tokens=False).ids == ours.encode(each, add_special=False)


def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path) -> None:
    settings = json.loads((spaced(tmp_path) / "tokenizer.json").read_text())
    settings["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        FolderText(tmp_path)


def test_an_id_far_beyond_the_tokens_is_refused(tmp_path: Path) -> None:
    path = spaced(tmp_path) / "tokenizer.json"
    settings = json.loads(path.read_text())
    settings["model"]["vocab"]["b"] = 2**31
    path.write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match="has ids up to 2147483648 for 9 tokens"):
        FolderText(tmp_path)
