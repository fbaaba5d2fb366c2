"""`edgeinfer rm`: deletes what is ours, takes the rest off the list, and asks before."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from edgeinfer.app.commands import rm as command
from edgeinfer.app.sessions.snapshots import ENDING
from edgeinfer.engine.prefixes.folders import PAGES, folder_of
from edgeinfer.engine.running import OpenModel, RunningNote
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.store import ModelStore
from edgeinfer.offload.bundle_file import firing_path
from tests.app.test_cli_models import run
from tests.conftest import write_tiny_llama


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tiny(home: Path, tiny_model: Path) -> Path:
    """A model in the store's folder."""
    (home / "models").mkdir(parents=True)
    return Path(shutil.copy(tiny_model, home / "models" / "tiny.gguf"))


def known(path: Path) -> str:
    with GGUFFile.open(path) as file:
        return fingerprint(file)


def test_without_a_terminal_nothing_is_deleted_unless_told(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rm", "tiny")
    assert (code, out) == (1, "")
    assert "--yes" in err
    assert tiny.exists()
    code, out, _ = run(capsys, "rm", "tiny", "--yes")
    assert code == 0
    assert out.startswith("tiny removed, ")
    assert not tiny.exists()


@pytest.mark.parametrize(("answer", "goes"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_someone_at_a_terminal_is_asked(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, goes: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr(command.sys, "stderr", Terminal())
    code, _, _ = run(capsys, "rm", "tiny")
    assert (code, tiny.exists()) == (0 if goes else 1, not goes)


def test_everything_derived_goes_too(tiny: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_llama(home / "models" / "other.gguf", seed=1)
    own, others = known(tiny), known(home / "models" / "other.gguf")
    run(capsys, "pack", "tiny")
    bundle = next((home / "bundles").glob("*.bundles"))
    for name in (own, others):
        firing_path(name).write_text("{}")
        (home / "drafts" / name).mkdir(parents=True)
        (home / "drafts" / name / "learnt.npz").write_bytes(b"1234")
        folder_of(name).mkdir(parents=True)
        (folder_of(name) / f"{name}{PAGES}").write_bytes(b"12345")
        (home / "snapshots").mkdir(exist_ok=True)
        (home / "snapshots" / f"1-{name[:32]}{ENDING}").write_bytes(b"1234")
    nbytes = tiny.stat().st_size + bundle.stat().st_size + 2 + 4 + 4 + 5
    (removed,) = json.loads(run(capsys, "rm", "tiny", "--yes", "--json")[1])["removed"]
    assert (removed["name"], removed["deleted_file"], removed["freed_bytes"]) == ("tiny", True, nbytes)
    left = [str(path) for path in home.rglob("*")]
    assert not [path for path in left if own[:16] in path]
    assert len([path for path in left if others[:16] in path]) == 6


def test_what_another_listed_file_uses_stays(
    tiny: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(tiny, home / "models" / "copy.gguf")
    run(capsys, "pack", "tiny")
    run(capsys, "rm", "copy", "--yes")
    assert list((home / "bundles").glob("*.bundles"))


def test_a_linked_file_stays_and_nobody_is_asked(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copy(tiny_model, tmp_path / "mine.gguf"))
    run(capsys, "pull", str(path))
    ModelStore().remember("mine")
    expected = f"mine removed from the list; the file stays at {path}\n"
    assert run(capsys, "rm", "mine") == (0, expected, "")
    assert path.exists()
    assert ModelStore().models() == []
    assert ModelStore().remembered() == ()


@pytest.mark.parametrize("arguments", [("rm",), ("models", "--remove")])
def test_a_link_in_the_folder_goes_and_its_file_stays(
    home: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    path = Path(shutil.copy(tiny_model, tmp_path / "mine.gguf"))
    (home / "models").mkdir(parents=True)
    (home / "models" / "linked.gguf").symlink_to(path)
    out = run(capsys, *arguments, "linked")[1]
    assert out == f"linked removed from the list; the file stays at {path}\n"
    assert path.exists()
    assert ModelStore().models() == []


def test_one_unknown_name_and_nothing_is_deleted(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "rm", "tiny", "tinny", "--yes")
    assert code == 1
    assert "did you mean tiny?" in err
    assert tiny.exists()


def test_a_model_in_use_is_not_deleted(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningNote(OpenModel("tiny", tiny)):
        code, _, err = run(capsys, "rm", "tiny", "--yes")
    assert code == 1
    assert "tiny is in use by" in err
    assert tiny.exists()
