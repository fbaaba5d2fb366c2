"""Folders with an ONNX decoder as models: `run`, `chat`, the library, and folders that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("onnx.helper")
pytest.importorskip("onnxruntime")

from edgeinfer.app.cli import build_app, main
from edgeinfer.engine.loading import load
from edgeinfer.errors import ModelNotFound
from edgeinfer.models.store import ModelStore
from tests.conftest import write_tiny_llama
from tests.golden.goldens import Golden
from tests.optimum_folder import write_optimum

GREEDY = ("--temp", "0", "--max-tokens", "12")


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("folder") / "tiny.gguf", context=256)


@pytest.fixture(scope="module")
def folder(model: Path) -> Path:
    found = model.parent / "exported"
    with pytest.raises(SystemExit) as left:
        main(["export", "--onnx", str(found), "-m", str(model)])
    assert not left.value.code
    return found


def invoke(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(build_app(), arguments, input=text)


def test_run_answers_as_the_onnx_device_does_with_the_file(model: Path, folder: Path) -> None:
    expected = invoke("run", "the inn", "-m", str(model), "--device", "onnx", "--json", *GREEDY)
    found = invoke("run", "the inn", "-m", str(folder), "--json", *GREEDY)
    assert (found.exit_code, found.stderr) == (0, "")
    wanted, answer = json.loads(expected.stdout), json.loads(found.stdout)
    assert answer["tokens"] == wanted["tokens"]
    assert answer["text"] == wanted["text"]
    assert answer["n_prompt"] == wanted["n_prompt"]
    assert (answer["devices"], answer["model"]) == (["onnx"], "exported")


def test_chat_keeps_what_it_read(model: Path, folder: Path) -> None:
    lines = "the rain\nan inn\n"
    expected = invoke("chat", "-m", str(model), "--device", "onnx", *GREEDY, text=lines)
    found = invoke("chat", "-m", str(folder), *GREEDY, text=lines)
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout == expected.stdout


def test_speculation_and_another_process_give_the_same_text(folder: Path) -> None:
    plain = invoke("run", "the the the the", "-m", str(folder), *GREEDY)
    assert plain.exit_code == 0
    for more in (["--isolate"], ["--spec", "4"]):
        assert invoke("run", "the the the the", "-m", str(folder), *GREEDY, *more).stdout == plain.stdout


def test_a_folder_of_optimum_is_a_model_with_its_own_end(tmp_path: Path) -> None:
    golden = Golden.read("llama-f32")
    path = write_optimum(tmp_path / "optimum", golden.model)
    with load(path, spec="on", verify_cost={8: 1.1}) as llm:
        assert llm.drafts is not None
        assert not llm.drafts.branches
        assert (llm.info.architecture, llm.info.n_context, llm.info.device) == ("llama", 256, "onnx")
        stream = llm.chat([{"role": "user", "content": "rain"}], temperature=0.0, max_tokens=9)
        assert stream.read() == llm.detokenize(stream.tokens)
        assert len(stream.tokens) == 9
        assert llm.tokenize("<|im_end|>a") == [2, llm.tokenize("a")[0]]
        assert 2 not in llm.tokenize("<|im_end|>a", parse_special=False)


def test_a_folder_is_found_by_its_name_alone_and_again_without_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    found = ModelStore().find(folder.name)
    assert (found.path, found.name) == (folder, "exported")
    assert found.nbytes == sum(path.stat().st_size for path in folder.iterdir())
    first = invoke("run", "the", "-m", folder.name, *GREEDY)
    monkeypatch.chdir("/")
    assert invoke("run", "the", *GREEDY).stdout == first.stdout != ""


def test_other_folders_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no \.gguf file and no ONNX decoder"):
        ModelStore().find(str(tmp_path))


def test_a_folder_is_not_pulled_but_used(folder: Path) -> None:
    found = invoke("pull", str(folder))
    assert (found.exit_code, found.stdout) == (1, "")
    assert f"-m {folder}" in found.stderr


def test_commands_that_need_the_file_say_so(folder: Path) -> None:
    for arguments in (["run", "a", "--device", "cpu"], ["run", "a", "--ctx", "300"], ["run", "a", "--kv", "q8"]):
        found = invoke(*arguments, "-m", str(folder), *GREEDY)
        assert found.exit_code == 1
        assert str(folder) in found.stderr


def test_texts_become_tokens_and_back_as_with_the_file(model: Path, folder: Path) -> None:
    for more in ([], ["--no-special"], ["--json"]):
        found, expected = (invoke("tokenize", "the rain in", "-m", str(path), *more) for path in (folder, model))
        assert (found.exit_code, found.stderr) == (0, "")
        assert found.stdout == expected.stdout != ""
    ids = invoke("tokenize", "the rain in", "-m", str(folder), "--no-special").stdout.split()
    found, expected = (invoke("detokenize", *ids, "-m", str(path)) for path in (folder, model))
    assert found.stdout == expected.stdout == "the rain in"


def test_a_folder_without_its_tokenizer_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "genai_config.json").write_bytes((folder / "genai_config.json").read_bytes())
    found = invoke("tokenize", "the", "-m", str(tmp_path))
    assert found.exit_code == 1
    assert "has no tokenizer.json" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "plan needs a GGUF file; edgeinfer run --stats answers with it"),
        (["bench", "--runs", "1"], "bench needs a GGUF file; edgeinfer run --stats answers with it"),
        (["export", "--onnx", "elsewhere"], "export needs a GGUF file; other programs can run it as it is"),
    ],
)
def test_commands_for_files_say_in_a_line_what_works_with_a_folder(
    folder: Path, arguments: list[str], words: str
) -> None:
    found = invoke(*arguments, "-m", str(folder))
    assert (found.exit_code, found.stdout) == (1, "")
    (line,) = found.stderr.splitlines()
    assert str(folder) in line
    assert words in line
