"""Temporary files name their process: those of killed ones are removed at the next start, all others stay."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from edgeinfer import temporary
from edgeinfer.app import removal
from edgeinfer.app.opening.model_choice import open_chosen
from edgeinfer.app.sessions.database import is_alive, this_process
from edgeinfer.engine.running import RunningNote, running
from edgeinfer.file_lock import FileLock, LockHeld
from edgeinfer.models.store import ModelStore
from edgeinfer.offload.bundle_file import bundles_folder
from edgeinfer.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from edgeinfer.engine.probing.disk import DiskProbe
from edgeinfer.file_lock import FileLock
from edgeinfer.temporary import temporary_file, temporary_folder, temporary_path
folder = Path(sys.argv[1])
probe = DiskProbe(folder, short=True)
own = temporary_folder("edgeinfer", folder)
Path(own.name, "shared").touch()
temporary_file(folder / "chats.db")
temporary_path(folder / "model.json").touch()
FileLock(folder / ".tiny.lock", "tiny").__enter__()
(folder / "tiny.gguf.0123456789.part").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def with_repository() -> dict[str, str]:
    """The environment, with this repository's modules before others that it names."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": paths}


def left_by_a_killed_process(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], env=with_repository(), check=False)
    return names_in(folder)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="processes are killed by a signal")
def test_what_a_killed_process_left_is_removed_at_the_next_start(
    home: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (memory := tmp_path / "memory").mkdir()
    monkeypatch.setattr(removal, "MEMORY_FOLDER", memory)
    for folder in (ModelStore().root, bundles_folder(), memory):
        left = left_by_a_killed_process(folder)
        assert len(left) >= 5  # where disks can be probed a folder for that, too
        assert ".tiny.lock" in left
    open_chosen(load_settings({"model": str(tiny_model)}), lambda model: model)
    assert names_in(ModelStore().root) == [".last-used", "tiny.gguf.0123456789.part"]
    assert names_in(bundles_folder()) == ["tiny.gguf.0123456789.part"]
    assert names_in(memory) == [".tiny.lock", "tiny.gguf.0123456789.part"]  # locks are not made there


def test_what_belongs_to_a_living_process_stays(tmp_path: Path) -> None:
    number, name = temporary.temporary_file(tmp_path / "a")
    os.close(number)
    with temporary.temporary_folder("edgeinfer", tmp_path) as folder, FileLock(tmp_path / ".x.lock", "x"):
        temporary.temporary_path(tmp_path / "b").touch()
        assert temporary.remove_leftovers(tmp_path) == 0
        removal.remove_all_leftovers()
        assert len(names_in(tmp_path)) == 4
        assert Path(folder).is_dir()
    assert Path(name).is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system keeps the time of the start as it was")
def test_what_belongs_to_a_living_process_stays_where_the_clock_is_set(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the system, from which psutil computes that of a process, moves with the clock."""
    number, name = temporary.temporary_file(tmp_path / "a")
    os.close(number)
    year_s, boot_time = 365 * 86400.0, psutil._pslinux.boot_time  # type: ignore[attr-defined]
    writer = this_process()
    with FileLock(tmp_path / ".x.lock", "x"), RunningNote(address="http://127.0.0.1:1/v1"):
        (before,) = running()
        for moved_s in (year_s, -year_s):
            monkeypatch.setattr("psutil._pslinux.boot_time", lambda moved_s=moved_s: boot_time() + moved_s)
            assert temporary.remove_leftovers(tmp_path) == 0
            with pytest.raises(LockHeld), FileLock(tmp_path / ".x.lock", "x"):
                pass
            (now,) = running()
            assert now.started_s - before.started_s == pytest.approx(moved_s)  # by the clock of today
            assert is_alive(writer)
    assert Path(name).is_file()


@pytest.mark.skipif(os.name == "nt", reason="has no zombies")
def test_a_lock_of_a_process_that_nobody_asks_for_is_taken_over(tmp_path: Path) -> None:
    """As in a container whose first process does not."""
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env=with_repository())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not forgotten
    assert (tmp_path / ".tiny.lock").exists()
    with FileLock(tmp_path / ".tiny.lock", "tiny"):
        temporary.remove_leftovers(tmp_path)
        assert names_in(tmp_path) == [".tiny.lock", "tiny.gguf.0123456789.part"]
    child.wait()


def test_an_empty_lock_of_the_future_is_taken_over(tmp_path: Path) -> None:
    """Its process was killed before it wrote, and the clock was set back."""
    lock = tmp_path / ".x.lock"
    lock.touch()
    ahead_s = time.time() + 1e6
    os.utime(lock, (ahead_s, ahead_s))
    with FileLock(lock, "x"):
        pass


def test_what_another_computer_left_stays_for_a_week(tmp_path: Path) -> None:
    other = tmp_path / ".probe.tmp-00000000-1-5-abc"
    other.mkdir()
    assert temporary.remove_leftovers(tmp_path) == 0
    os.utime(other, (1.0, 1.0))
    assert temporary.remove_leftovers(tmp_path) == 1
    assert names_in(tmp_path) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    (kept := tmp_path / "kept").mkdir()
    (kept / "file").touch()
    (swept := tmp_path / "swept").mkdir()
    number, name = temporary.temporary_file(swept / "a")
    os.close(number)
    gone = re.sub(rf"-{os.getpid()}-(\d+)-", rf"-{os.getpid()}-5-", name)
    Path(name).unlink()
    Path(gone).symlink_to(kept)
    assert temporary.remove_leftovers(swept) == 1
    assert names_in(swept) == []
    assert names_in(kept) == ["file"]


def test_a_file_name_of_any_length_has_a_temporary_one(tmp_path: Path) -> None:
    number, name = temporary.temporary_file(tmp_path / ("n" * 250))
    os.close(number)
    assert temporary.OWNED.search(name)
    assert temporary.OWNED.search(temporary.temporary_path(tmp_path / "model.json").name)


def test_a_folder_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    assert temporary.remove_leftovers(tmp_path / "nowhere") == 0


ALLOWED = {
    "edgeinfer/app/tui/editor.py": "TemporaryDirectory",  # a text that a user may still write, in an editor left open
}


def test_all_temporary_files_name_their_process_or_have_no_name() -> None:
    used: list[str] = []
    for path in sorted((ROOT / "edgeinfer").rglob("*.py")):
        shown = path.relative_to(ROOT).as_posix()
        for call in re.findall(r"tempfile\.(\w+)\(", path.read_text(encoding="utf-8")):
            nameless = call in ("TemporaryFile", "gettempdir")
            if shown != "edgeinfer/temporary.py" and not nameless and ALLOWED.get(shown) != call:
                used.append(f"{shown}: {call}")
    assert used == []


def test_marks_are_read_as_they_are_written(tmp_path: Path) -> None:
    match = temporary.OWNED.search(temporary.temporary_path(tmp_path / "x").name)
    assert match is not None
    assert int(match["pid"]) == os.getpid()
    assert temporary.is_alive(int(match["pid"]), float(match["started"]))
    assert json.loads(match["started"]) == int(temporary.start_time(os.getpid()))
