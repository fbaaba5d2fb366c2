"""`edgeinfer show`: what a model's header says, where it is and when it was used."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.store import ModelStore
from tests.app.test_cli_models import run
from tests.conftest import CHATML
from tests.golden.goldens import DATA
from tests.head_files import write_with_head


@pytest.fixture
def tiny(home: Path, tiny_model: Path) -> Path:
    (home / "models").mkdir(parents=True)
    return Path(shutil.copy(tiny_model, home / "models" / "tiny.gguf"))


def test_a_model_is_shown(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ModelStore().remember("tiny")
    found = json.loads(run(capsys, "show", "tiny", "--json")[1])
    with GGUFFile.open(tiny) as file:
        n_params = sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values())
        n_vocab = len(file.metadata.strings("tokenizer.ggml.tokens"))
    assert (found["arch"], found["n_params"], found["quant"]) == ("llama", n_params, "F32")
    assert (found["n_context"], found["tokenizer"], found["n_vocab"]) == (512, "gpt2, default", n_vocab)
    assert (found["has_template"], found["licence"], found["paths"]) == (True, None, [str(tiny)])
    assert abs((datetime.now().astimezone() - datetime.fromisoformat(found["last_used"])).total_seconds()) < 3600
    lines = dict(line.split(maxsplit=1) for line in run(capsys, "show", "tiny")[1].splitlines())
    assert lines["context"] == "512 tokens"
    assert lines["chat"] == "template  yes (--template prints it)"
    assert lines["path"] == str(tiny)
    assert "licence" not in lines


def test_a_trained_head_is_told(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_with_head(DATA / "converted" / "qwen35-bf16.gguf", tmp_path / "head.gguf")
    with GGUFFile.open(model) as file:
        own = sum(tensor.nbytes for name, tensor in file.tensors.items() if name.startswith("blk.2."))
    assert json.loads(run(capsys, "show", str(model), "--json")[1])["head_bytes"] == own
    assert "of it (--spec off leaves it out)" in run(capsys, "show", str(model))[1]
    assert json.loads(run(capsys, "show", "tiny", "--json")[1])["head_bytes"] == 0
    assert "trained head" not in run(capsys, "show", "tiny")[1]


def test_a_template_that_the_settings_choose_is_told(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads(run(capsys, "show", "tiny", "--json")[1])["chosen_template"] is None
    monkeypatch.setenv("EDGEINFER_CHAT_TEMPLATE", "llama3")
    assert json.loads(run(capsys, "show", "tiny", "--json")[1])["chosen_template"] == "llama3"
    assert "used instead" in run(capsys, "show", "tiny")[1]


def test_the_template_alone_is_printed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "show", "tiny", "--template")[1] == f"{CHATML}\n"


def test_a_file_of_several_says_what_it_can(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "odd\x1b[2J")
    writer.add_license("mit")
    writer.add_license_link("https://example.org/licence")
    writer.add_string("odd\x1b[2J.context_length", "many")
    writer.add_tensor("a", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    out = run(capsys, "show", str(path))[1]
    assert "\x1b" not in out
    lines = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in out.splitlines()}
    assert lines["licence"] == "mit https://example.org/licence"
    assert lines["chat template"] == "no"
    assert "context" not in lines
    code, _, err = run(capsys, "show", str(path), "--template")
    assert (code, "has no chat template" in err) == (1, True)


def test_a_name_that_is_not_there(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "tinny")
    assert (code, out) == (1, "")
    assert "did you mean tiny?" in err


def test_times_stand_beside_names_and_old_lists_count(home: Path, tiny: Path) -> None:
    listed = home / "models" / ".last-used"
    listed.write_text("other\nwith\ttab\n")
    store = ModelStore()
    store.remember("tiny")
    assert store.remembered() == ("tiny", "other", "with\ttab")
    assert store.used_at(store.find("tiny")) is not None
    assert store.forget("with\ttab")
    assert [line.split("\t")[0] for line in listed.read_text().splitlines()] == ["tiny", "other"]
