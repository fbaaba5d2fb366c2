"""Prefixes on disk as users of commands see them: kept from one process to the next, told, counted and deleted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeinfer.app.cli import build_app
from edgeinfer.engine.prefixes.folders import is_nearly_full, n_bytes_kept, prefixes_folder
from tests.conftest import write_tiny_llama
from tests.waiting import until

MAIN = [sys.executable, "-c", "from edgeinfer.app.cli import main; main()"]
TEXT = "the rain in the tin, the hen in the inn and there it ran. " * 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "roomy.gguf", context=2048)


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""
    if is_nearly_full(home.parent, 10**8):
        pytest.skip("the disk is nearly full, so that no prefixes are kept there")


def options(model: Path, *arguments: str) -> list[str]:
    sampled = ("--temp", "0.8", "--seed", "5", "--max-tokens", "12", "--ctx", "2048")
    return ["run", "-m", str(model), "--device", "cpu", "--threads", "1", *sampled, *arguments]


def run(model: Path, *arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(build_app(), [*options(model, "--json", *arguments), TEXT])
    assert result.exit_code == 0, result.output
    data: dict[str, object] = json.loads(result.stdout)
    return data


def test_the_second_process_reads_nothing_anew_and_says_so(model: Path) -> None:
    found = [
        subprocess.run([*MAIN, *options(model, *more), TEXT], capture_output=True, check=True, stdin=subprocess.DEVNULL)
        for more in (["--stats", "--no-prefix-cache"], ["--stats"], ["--stats"], ["--json"])
    ]
    assert len({each.stdout for each in found[:3]}) == 1
    assert [b" on disk" in each.stderr for each in found[:3]] == [False, False, True]
    record = json.loads(found[3].stdout)
    assert record["n_from_disk"] == record["n_cached"] == record["n_prompt"] - 1 > 256
    assert record["text"].encode().rstrip(b"\n") == found[0].stdout.rstrip(b"\n")


def test_two_processes_at_once_write_one_store(model: Path) -> None:
    """Both read anew and write the same, or one is in time for what the other has written."""
    command = [*MAIN, *options(model), TEXT]
    pair = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate()[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert said[0] == said[1] != b""
    third = run(model)
    assert third["n_from_disk"] != 0
    assert str(third["text"]).encode().rstrip(b"\n") == said[0].rstrip(b"\n")
    assert len(_files()) == 1


@pytest.mark.parametrize("option", ["--no-prefix-cache", "--no-history", "--prefix-space=0"])
def test_nothing_is_kept_of_what_should_not_be(model: Path, option: str) -> None:
    first, second = run(model, option), run(model, option)
    assert first["tokens"] == second["tokens"]
    assert (first["n_from_disk"], second["n_from_disk"]) == (0, 0)
    assert not prefixes_folder().exists()


def test_who_asks_for_prefixes_without_history_has_them(model: Path) -> None:
    both = ("--no-history", "--prefix-cache")
    assert run(model, *both)["n_from_disk"] == 0
    assert run(model, *both)["n_from_disk"] != 0


def test_a_batch_leaves_the_beginning_of_its_prompts(model: Path, tmp_path: Path) -> None:
    lines = [{"prompt": TEXT + tail, "max_tokens": 4, "temp": 0} for tail in ("one", "two", "three")]
    (tmp_path / "prompts").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["batch", "-m", str(model), "--device", "cpu", "--parallel", "1", "--ctx", "2048"]
    found = [CliRunner().invoke(build_app(), [*arguments, str(tmp_path / "prompts")]) for _ in range(2)]
    assert [each.exit_code for each in found] == [0, 0]
    first, second = ([json.loads(line)["text"] for line in each.stdout.splitlines()] for each in found)
    assert first == second
    assert n_bytes_kept() > 0
    assert run(model)["n_from_disk"] != 0


def test_models_tells_of_prefixes_and_deletes_them(model: Path) -> None:
    run(model)
    kept = n_bytes_kept()
    assert kept > 0
    record = json.loads(CliRunner().invoke(build_app(), ["models", "--json"]).stdout)
    assert record["prefix_bytes"] == kept
    result = CliRunner().invoke(build_app(), ["models", "--clear-prefixes", "--json"])
    assert json.loads(result.stdout) == {"freed_bytes": kept}
    assert not prefixes_folder().exists()
    assert run(model)["n_from_disk"] == 0
    assert "freed" in CliRunner().invoke(build_app(), ["models", "--clear-prefixes"]).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
def test_a_killed_process_leaves_whole_files_or_none(model: Path, tmp_path: Path) -> None:
    """Killed as soon as anything is written; what is left gives the same answer."""
    expected = run(model, "--no-prefix-cache")["tokens"]
    command = [*MAIN, *options(model), TEXT]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or _files())
    process.kill()
    process.wait()
    assert run(model)["tokens"] == expected
    assert run(model)["n_from_disk"] != 0
    assert not [path for path in _files() if ".tmp-" in path.name]


def _files() -> list[Path]:
    return [path for path in prefixes_folder().rglob("*") if path.is_file()]
