"""`edgeinfer export`: folders that onnxruntime-genai runs with the same text, written whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.cli import main
from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model
from edgeinfer.models.text import Tokenizer
from edgeinfer.models.text.tokenizer_file import tokenizer_files
from edgeinfer.steps import no_progress

pytest.importorskip("onnx.helper")

from edgeinfer.backends.onnx.folder import export_graph

FILES = {"genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json"}
DATA = Path(os.environ.get("EDGEINFER_TEST_DATA", Path(__file__).resolve().parents[2] / ".." / "shared" / "data"))
TEXTS = ("Hello world! 123", "<|im_start|>user\nthe then<|im_end|>\n", "  naïve \n\n\tx=1; 日本", "")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


def test_a_folder_has_all_that_is_needed(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    code, out, err = run(capsys, "export", "--onnx", str(folder), "-m", str(tiny_model), "--ctx", "64", "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["folder"] == str(folder)
    assert record["n_context"] == 64
    assert record["notes"] == []
    assert record["files"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert set(record["files"]) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    settings = json.loads((folder / "genai_config.json").read_text())
    assert settings["model"]["context_length"] == 64
    assert settings["model"]["eos_token_id"] == [0, 2]


def test_onnxruntime_genai_writes_the_same_text(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    genai = pytest.importorskip("onnxruntime_genai")
    from edgeinfer import load

    folder = tmp_path / "folder"
    assert run(capsys, "export", "--onnx", str(folder), "-m", str(tiny_model))[0] == 0
    with load(tiny_model, device="onnx") as ours:
        expected = "".join(ours.complete("the then", max_tokens=24, temperature=0.0))
    model = genai.Model(str(folder))
    with GGUFFile.open(tiny_model) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    wanted = genai.GeneratorParams(model)
    wanted.set_search_options(max_length=200, do_sample=False)
    generator = genai.Generator(model, wanted)
    generator.append_tokens(tokenizer.encode("the then"))
    tokens = []
    for _ in range(24):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    assert tokenizer.decode(tokens) == expected


def test_tokenizer_files_give_the_same_tokens(tiny_model: Path) -> None:
    from tokenizers import Tokenizer as Other

    with GGUFFile.open(tiny_model) as file:
        ours, files = Tokenizer.from_metadata(file.metadata), tokenizer_files(file.metadata, 64)
    other = Other.from_str(files.tokenizer)
    for text in TEXTS:
        assert other.encode(text).ids == ours.encode(text)
        assert other.decode(other.encode(text).ids, skip_special_tokens=False) == text
    settings = json.loads(files.settings)
    assert settings["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in settings["chat_template"]


def test_a_folder_with_anything_in_it_is_left_alone(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    code, out, err = run(capsys, "export", "--onnx", str(tmp_path), "-m", str(tiny_model))
    assert (code, out) == (1, "")
    assert "not empty; give a new folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(capsys, "export", "--onnx", str(empty), "-m", str(tiny_model))[0] == 0
    assert {path.name for path in empty.iterdir()} == FILES


def test_nothing_is_left_of_an_export_that_fails(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgeinfer.backends.onnx import folder as folders

    def full(path: Path, graph: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "_write_weights", full)
    code, _, err = run(capsys, "export", "--onnx", str(tmp_path / "folder"), "-m", str(tiny_model))
    assert code == 1
    assert "cannot be written: No space left on device" in err
    assert list(tmp_path.iterdir()) == []


def test_models_that_cannot_be_exported_are_refused_with_what_works(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "export", "-m", str(tiny_model))
    assert code == 1
    assert "edgeinfer export --onnx DIR" in err
    with open_model(tiny_model, 64) as model:
        odd = replace(model.spec, kv=tuple(replace(layer, key_width=12, value_width=12) for layer in model.spec.kv))
        with pytest.raises(UnsupportedModel, match=r"heads are 12 wide.*multiples of 8; --device onnx runs"):
            export_graph(odd, model.file, 64, no_progress)


def test_a_vocabulary_without_exact_files_is_left_out_and_said_so(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vocabulary = DATA / "vocab" / "ggml-vocab-llama-spm.gguf"
    if not vocabulary.is_file():
        pytest.skip(f"no vocabulary at {vocabulary}; set EDGEINFER_TEST_DATA")
    with GGUFFile.open(vocabulary) as file, pytest.raises(UnsupportedModel, match="SentencePiece"):
        tokenizer_files(file.metadata, 64)
