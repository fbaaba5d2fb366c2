"""`edgeinfer tokenize` and `detokenize`, on vocabularies with known answers."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from edgeinfer.app.cli import main
from edgeinfer.app.commands.detokenize import read_ids
from edgeinfer.errors import EdgeInferError

DATA = Path(os.environ.get("EDGEINFER_TEST_DATA", Path(__file__).resolve().parents[2] / ".." / "shared" / "data"))
VOCAB = DATA / "vocab"
SEPARATOR = "\n__ggml_vocab_test__\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Put bytes on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture(params=["llama-bpe", "llama-spm"])
def vocabulary(request: pytest.FixtureRequest) -> Path:
    """A GGUF file that holds only a vocabulary, with test vectors beside it."""
    path = VOCAB / f"ggml-vocab-{request.param}.gguf"
    if not path.is_file():
        pytest.skip(f"no vocabulary at {path}; set EDGEINFER_TEST_DATA")
    return path


@pytest.mark.parametrize("index", [3, 17, 30])
def test_known_texts_have_known_ids(
    home: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    texts = Path(f"{vocabulary}.inp").read_bytes().decode().split(SEPARATOR)
    wanted = [int(word) for word in Path(f"{vocabulary}.out").read_text().splitlines()[index].split()]
    give_stdin(monkeypatch, texts[index].encode())
    code, out, err = run(capsys, "tokenize", "-m", str(vocabulary), "--no-special", "--json")
    answer = json.loads(out)
    assert (code, answer["tokens"], err) == (0, wanted, "")
    assert len(answer["pieces"]) == len(wanted)
    give_stdin(monkeypatch, out.encode())
    code, out, _ = run(capsys, "detokenize", "-m", str(vocabulary), "--json")
    assert json.loads(out)["text"].strip(" ") == texts[index].strip(" ")


def test_begin_of_text_is_added_unless_told(home: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_special = run(capsys, "tokenize", "-m", str(vocabulary), "Hello world")[1].split()
    without = run(capsys, "tokenize", "-m", str(vocabulary), "--no-special", "Hello world")[1].split()
    assert with_special == [*with_special[: len(with_special) - len(without)], *without]
    assert len(with_special) == len(without) + 1


def test_the_last_used_model_does_not_change(home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tokenize", "-m", str(tiny_model), "the")[0] == 0
    assert not (home / "models" / ".last-used").exists()


def test_special_tokens_in_text(home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tokenize", "-m", str(tiny_model), "--no-special", "<|im_start|>the", "--json")
    assert (code, json.loads(out)["pieces"]) == (0, ["<|im_start|>", "the"])


def test_text_goes_there_and_back(
    home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the hen\r\n in — Ünïcode 🙂\n"
    give_stdin(monkeypatch, text.encode())
    ids = run(capsys, "tokenize", "-m", str(tiny_model), "--no-special")[1]
    give_stdin(monkeypatch, ids.encode())
    assert run(capsys, "detokenize", "-m", str(tiny_model))[:2] == (0, text)
    assert run(capsys, "detokenize", "-m", str(tiny_model), *ids.split())[:2] == (0, text)


@pytest.mark.parametrize(("ids", "message"), [("1 x", "'x' is not a token id"), ("999999", "outside the vocabulary")])
def test_bad_ids(
    home: Path,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ids: str,
    message: str,
) -> None:
    give_stdin(monkeypatch, ids.encode())
    code, out, err = run(capsys, "detokenize", "-m", str(tiny_model))
    assert (code, out) == (1, "")
    assert message in err


def test_input_that_is_not_utf8(
    home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"ab\xff")
    code, _, err = run(capsys, "tokenize", "-m", str(tiny_model))
    assert (code, "not UTF-8 at byte 2" in err) == (1, True)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("1 2 3", [1, 2, 3]), ("[1, 2]", [1, 2]), ("1,2\n3\n", [1, 2, 3]), ('{"tokens": [4]}', [4]), ("", []), ("[]", [])],
)
def test_ids_are_read_in_every_form(text: str, ids: list[int]) -> None:
    assert read_ids(text) == ids


@pytest.mark.parametrize("text", ["-1", "1.5", "{}", '{"tokens": 3}', "[[1]]", "١"])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(EdgeInferError):
        read_ids(text)


def test_a_missing_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "tokenize", "-m", "no/such.gguf", "x")
    assert (code, out) == (1, "")
    assert "there is no file no/such.gguf" in err
