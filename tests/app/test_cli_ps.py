"""`edgeinfer ps`: which processes have models open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.engine.running import OpenModel, RunningNote, running, running_folder, users_of
from edgeinfer.process import command, environment
from tests.app.test_cli_models import run


def notes(home: Path) -> list[Path]:
    return list((home / "running").glob("*"))


def test_a_loaded_model_is_listed_until_it_is_closed(
    home: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with edgeinfer.load(tiny_model, device="reference"):
        (process,) = json.loads(run(capsys, "ps", "--json")[1])["processes"]
        assert process["pid"] == os.getpid()
        assert process["models"] == [{"name": tiny_model.stem, "path": str(tiny_model), "loading": False}]
        assert process["memory_bytes"] > 1_000_000
        table = run(capsys, "ps")[1].splitlines()
        assert table[0].split() == ["PID", "COMMAND", "MODEL", "SINCE", "MEMORY", "ADDRESS"]
        assert table[1].split()[0] == str(os.getpid())
        assert tiny_model.stem in table[1]
        assert users_of((tiny_model,))
    assert notes(home) == []
    code, out, err = run(capsys, "ps")
    assert (code, out, err) == (0, "", "no edgeinfer process of yours is running\n")
    assert json.loads(run(capsys, "ps", "--json")[1]) == {"processes": []}


def test_a_model_that_fails_to_open_leaves_no_note(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(edgeinfer.BadGGUF):
        edgeinfer.load(tmp_path / "bad.gguf")
    assert notes(home) == []


def test_a_model_that_is_being_opened_says_so(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningNote(OpenModel("big", tmp_path / "big.gguf", is_loading=True)):
        assert "big (loading)" in run(capsys, "ps")[1]
        with RunningNote(OpenModel("big", tmp_path / "big.gguf")):
            assert "loading" not in run(capsys, "ps")[1]


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
def test_a_killed_server_is_listed_with_its_address_and_then_forgotten(home: Path, tiny_model: Path) -> None:
    pytest.importorskip("uvicorn")
    arguments = ["serve", "--port", "0", "--ready-json", "--no-key", "-m", str(tiny_model), "--device", "reference"]
    with subprocess.Popen(
        command("edgeinfer", *arguments), env=environment(os.environ), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        (process,) = running()
        assert (process.pid, process.command, process.address) == (server.pid, "serve", f"{ready['url']}/v1")
        assert [model.name for model in process.models] == [tiny_model.stem]
        server.send_signal(signal.SIGKILL)
        server.wait()
    assert notes(home)
    assert running() == ()
    assert notes(home) == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "[" * 5000, "\x00", '{"pid": "x"}', '{"pid": 1e400, "started": 1}', "9" * 70_000],
)
def test_a_broken_note_is_passed_over(home: Path, text: str) -> None:
    running_folder().mkdir(parents=True)
    (running_folder() / "1-x.process").write_text(text)
    assert running() == ()


def test_the_number_of_an_ended_process_may_be_anothers(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = RunningNote(address="http://127.0.0.1:1/v1")
    (path,) = notes(home)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "started": time.time() - 9e6}))
    assert running() == ()
    assert notes(home) == []
    note.remove()


def test_processes_of_other_computers_are_left_alone(home: Path) -> None:
    note = RunningNote(address="http://127.0.0.1:1/v1")
    (path,) = notes(home)
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "another"}))
    assert running() == ()
    assert notes(home) == [path]
    note.remove()


def test_a_folder_that_cannot_be_written_is_no_trouble(home: Path, tiny_model: Path) -> None:
    home.mkdir()
    (home / "running").write_text("no folder")
    with edgeinfer.load(tiny_model, device="reference"):
        assert running() == ()
