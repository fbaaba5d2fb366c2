"""`edgeinfer pack`: bundle files written, found again, checked, repaired, removed with their models."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeinfer.app import progress
from edgeinfer.app.cli import main
from edgeinfer.offload.bundle_file import bundles_folder, part_path
from tests.conftest import write_tiny_llama


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


REMOVED = r"tiny removed, [\d.]+ kB freed; its bundle file is deleted\n"


@pytest.fixture
def stored_model(home: Path, tiny_model: Path) -> Path:
    """A model in the store."""
    (home / "models").mkdir(parents=True)
    return Path(shutil.copy(tiny_model, home / "models" / "tiny.gguf"))


def the_file(home: Path) -> Path:
    """The one bundle file there is."""
    (found,) = (home / "bundles").iterdir()
    return found


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_packing_checking_repairing_removing(
    home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(progress, "FIRST_LINE_S", 0.0)
        code, out, err = run(capsys, "pack", "tiny", "--json")
    path = the_file(home)
    packed = json.loads(out)
    assert (code, packed["state"], packed["model"], packed["path"]) == (0, "packed", "tiny", str(path))
    assert packed["size_bytes"] == path.stat().st_size
    assert packed["kept_bytes"] == packed["repaired"] == 0
    assert "packing tiny: " in err
    assert "\x1b" not in err
    whole = path.read_bytes()
    assert run(capsys, "pack", "tiny")[:2] == (0, f"{path} ({len(whole) / 1000:.1f} kB) is there already\n")
    assert run(capsys, "pack", "tiny", "--verify") == (0, f"{path} is whole\n", "")
    damage(path, len(whole) // 2)
    code, out, _ = run(capsys, "pack", "tiny", "--verify")
    assert (code, out.count("\n")) == (1, 1)
    assert out.startswith(f"{path}: bundle ")
    code, out, _ = run(capsys, "pack", "tiny", "--verify", "--json")
    record = json.loads(out)
    assert (code, record["state"], len(record["damaged"])) == (1, "damaged", 1)
    assert set(record["damaged"][0]) == {"bundle", "stage", "reason"}
    code, out, _ = run(capsys, "pack", "tiny", "--repair", "--json")
    assert (code, json.loads(out)["state"], json.loads(out)["repaired"]) == (0, "repaired", 1)
    assert path.read_bytes() == whole
    assert json.loads(run(capsys, "pack", "tiny", "--repair", "--json")[1])["state"] == "present"
    damage(path, len(whole) // 2)
    assert run(capsys, "pack", "tiny", "--repair")[1].endswith("is whole again: 1 bundle\n")
    code, out, _ = run(capsys, "pack", "tiny", "--remove", "--json")
    assert (code, json.loads(out)["freed_bytes"]) == (0, len(whole))
    assert not path.exists()
    assert run(capsys, "pack", "tiny", "--remove")[:2] == (0, f"there is no {path}\n")
    code, _, err = run(capsys, "pack", "tiny", "--verify")
    assert code == 1
    assert "edgeinfer pack MODEL" in err


def test_a_damaged_header_has_everything_packed_again(
    home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "pack", "tiny")
    path = the_file(home)
    whole = path.read_bytes()
    damage(path, 80)
    code, _, err = run(capsys, "pack", "tiny")
    assert code == 1
    assert "table of checksums is damaged" in err
    assert "--repair" in err
    assert json.loads(run(capsys, "pack", "tiny", "--repair", "--json")[1])["state"] == "packed"
    assert path.read_bytes() == whole
    os.truncate(path, len(whole) // 2)
    assert run(capsys, "pack", "tiny", "--verify")[0] == 1
    assert run(capsys, "pack", "tiny", "--repair")[0] == 0
    assert path.read_bytes() == whole


def test_repair_of_a_missing_file_makes_it(home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "pack", "tiny", "--repair", "--json")[1])["state"] == "packed"


def test_a_bundle_file_is_found_when_the_model_has_another_name(
    home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "pack", "tiny")
    path = the_file(home)
    moved = home / "renamed.gguf"
    shutil.move(stored_model, moved)
    record = json.loads(run(capsys, "pack", str(moved), "--json")[1])
    assert (record["state"], record["path"]) == ("present", str(path))


def test_another_place(home: Path, stored_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "new" / "place"
    code, out, _ = run(capsys, "pack", "tiny", "--out", str(place))
    assert (code, str(place) in out) == (0, True)
    assert run(capsys, "pack", "tiny", "--out", str(place), "--verify")[0] == 0
    assert not bundles_folder().exists()
    code, _, err = run(capsys, "pack", "tiny", "--out", str(tmp_path))
    assert (code, "is a folder; --out names a file" in err) == (1, True)


def test_files_of_others_are_left_alone(
    home: Path, stored_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "letter.txt"
    text.write_text("dear reader")
    for option in ("--repair", "--verify", "--remove", "--json"):
        code, _, err = run(capsys, "pack", "tiny", "--out", str(text), option)
        assert (code, "not a bundle file" in err) == (1, True)
    assert text.read_text() == "dear reader"


def test_one_thing_at_a_time(home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "pack", "tiny", "--repair", "--verify")
    assert (code, "give one of them" in err) == (1, True)


def test_models_shows_bundle_files_and_removes_them(
    home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_llama(home / "models" / "other.gguf", seed=1)
    run(capsys, "pack", "tiny")
    path = the_file(home)
    listed = json.loads(run(capsys, "models", "--json")[1])["models"]
    assert {model["name"]: model["bundle_bytes"] for model in listed} == {"tiny": path.stat().st_size, "other": 0}
    table = run(capsys, "models")[1].splitlines()
    assert [line.endswith(" packed)") for line in table] == [False, False, True]
    assert re.fullmatch(r"other removed, [\d.]+ kB freed\n", run(capsys, "models", "--remove", "other")[1])
    assert path.exists()
    assert not other.exists()
    assert re.fullmatch(REMOVED, run(capsys, "models", "--remove", "tiny")[1])
    assert not path.exists()
    assert not stored_model.exists()


def test_models_removes_a_half_written_bundle_file(
    home: Path, stored_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "pack", "tiny")
    path = the_file(home)
    path.rename(part_path(path))
    assert re.fullmatch(REMOVED, run(capsys, "models", "--remove", "tiny")[1])
    assert not list((home / "bundles").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_stopping_keeps_what_is_packed(home: Path, stored_model: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from edgeinfer.backends.cpu.bundles import writing\n"
        "writing.GROUP_BYTES = 1\n"
        "from edgeinfer.backends.cpu.bundles.writing import PartFile\n"
        "keep = PartFile.keep\n"
        "def stopped(part, written):\n"
        "    keep(part, written)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "PartFile.keep = stopped\n"
        "from edgeinfer.app.cli import main\n"
        "main(['pack', 'tiny'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in done.stderr
    assert [path.suffix for path in (home / "bundles").iterdir()] == [".part"]
