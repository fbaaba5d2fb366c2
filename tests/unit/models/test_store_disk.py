"""Two pulls at once, stale locks, full disks, folders that cannot be written, hostile names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edgeinfer.app.opening.face import OpeningCalledOff
from edgeinfer.errors import DownloadFailed
from edgeinfer.file_lock import FileLock
from edgeinfer.models.download.part import DownloadPart
from edgeinfer.models.gguf import Header
from edgeinfer.models.store import ModelStore
from tests.file_server import FileServer, Served
from tests.tiny_models import write_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A model file of half a mebibyte."""
    return write_model(tmp_path / "source.gguf")


def left_behind(store: ModelStore) -> list[str]:
    """Names of all files in the store's folder."""
    return sorted(path.name for path in store.root.iterdir())


PULL = """
import sys
from pathlib import Path
from edgeinfer.models.store import ModelStore
print(ModelStore(Path(sys.argv[1])).pull(sys.argv[2]).name)
"""


@pytest.fixture
def other(server: FileServer, store: ModelStore, data: bytes) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has pulled the first half of a model; the server waits with the second half."""
    server.files["/tiny.gguf"] = Served(data, stall=threading.Event())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", PULL, str(store.root), server.url("/tiny.gguf")]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while not any(request.sent_bytes >= len(data) // 4 and request.range is None for request in server.log):
            assert process.poll() is None
            threading.Event().wait(0.02)
        yield process
        go_on(server)
        process.kill()


def go_on(server: FileServer) -> None:
    """Let the server send the rest."""
    stalled = server.files["/tiny.gguf"].stall
    assert stalled is not None
    stalled.set()


def test_a_second_process_waits_for_the_first_and_tells_how_far_that_is(
    server: FileServer, store: ModelStore, data: bytes, other: subprocess.Popen[str]
) -> None:
    seen: list[tuple[int | None, int, int | None]] = []

    def waiting(pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        seen.append((pid, done_bytes, total_bytes))
        if done_bytes >= len(data) // 4:
            go_on(server)

    model = store.pull(server.url("/tiny.gguf"), waiting=waiting)
    assert model.path.read_bytes() == data
    assert other.communicate(timeout=60)[0].strip() == "tiny"
    assert {pid for pid, _, _ in seen} == {other.pid}
    assert len(data) // 4 <= max(done_bytes for _, done_bytes, _ in seen) <= len(data)
    assert seen[-1][2] == len(data)
    assert [request.range for request in server.log].count(None) == 1
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


def test_who_shows_nothing_of_waiting_has_the_progress_of_the_first(
    server: FileServer, store: ModelStore, data: bytes, other: subprocess.Popen[str]
) -> None:
    seen: list[tuple[int, int | None]] = []

    def progress(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        seen.append((done_bytes, total_bytes))
        go_on(server)

    assert store.pull(server.url("/tiny.gguf"), progress=progress).path.read_bytes() == data
    assert seen


def test_the_second_process_goes_on_where_the_first_was_killed(
    server: FileServer, store: ModelStore, data: bytes, other: subprocess.Popen[str]
) -> None:
    assert store.unfinished() == ()

    def waiting(pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        if done_bytes >= len(data) // 4:
            other.kill()
            other.wait()
            assert [each.source for each in store.unfinished()] == [server.url("/tiny.gguf")]
            go_on(server)

    assert store.pull(server.url("/tiny.gguf"), waiting=waiting).path.read_bytes() == data
    assert server.log[-1].range is not None
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OpeningCalledOff])
def test_waiting_can_be_called_off(
    server: FileServer, store: ModelStore, data: bytes, other: subprocess.Popen[str], stop: type[BaseException]
) -> None:
    def waiting(pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        raise stop

    with pytest.raises(stop):
        store.pull(server.url("/tiny.gguf"), waiting=waiting)
    go_on(server)
    assert other.communicate(timeout=60)[0].strip() == "tiny"
    assert store.find("tiny").path.read_bytes() == data


KILLED_PULL = """
import os, signal, sys
from pathlib import Path
from edgeinfer.models.store import ModelStore
replace = os.replace
def replaced(before, after):
    if str(after).endswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(before, after)
os.replace = replaced
ModelStore(Path(sys.argv[1])).pull(sys.argv[2])
"""


@pytest.mark.skipif(os.name == "nt", reason="processes are killed by a signal")
@pytest.mark.parametrize("ending", [".gguf", ".json"])
def test_a_pull_that_was_killed_where_names_are_given_goes_on(
    server: FileServer, store: ModelStore, data: bytes, ending: str
) -> None:
    """The model's own file under its final name, and nothing that says whose it is, would bar the name for good."""
    server.files["/tiny.gguf"] = Served(data)
    url, environment = server.url("/tiny.gguf"), {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED_PULL, str(store.root), url, ending]
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    assert [model.name for model in store.models() if model.place] == []
    assert store.pull(url).path.read_bytes() == data
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


def test_a_lock_that_cannot_be_written_is_no_lock(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    store.root.mkdir(exist_ok=True)
    with monkeypatch.context() as small:
        small.setattr("edgeinfer.file_lock.json.dump", full)
        with pytest.raises(OSError, match="No space"), FileLock(store.root / ".x.lock", "x"):
            pass
    with FileLock(store.root / ".x.lock", "x"):
        assert left_behind(store) == [".x.lock"]


@pytest.mark.parametrize("owner", [{"pid": 2**22 + 1, "started": 1.0}, {"pid": os.getpid(), "started": 1.0}])
def test_a_lock_whose_owner_is_gone_is_taken_over(
    server: FileServer, store: ModelStore, data: bytes, owner: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/tiny.gguf"] = Served(data)
    seen: list[Path] = []

    def look(header: Header, nbytes: int) -> None:
        seen.extend(store.root.glob(".*.lock"))

    store.pull(server.url("/tiny.gguf"), approve=look)
    store.remove("tiny")
    seen[0].write_text(json.dumps(owner), encoding="utf-8")
    assert store.pull(server.url("/tiny.gguf")).path.read_bytes() == data
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


def test_a_full_disk_is_seen_beforehand(
    server: FileServer, store: ModelStore, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/tiny.gguf"] = Served(data)
    real = shutil.disk_usage(store.root.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real._replace(free=1000))
    with pytest.raises(DownloadFailed, match=rf"{len(data)} bytes.*1000 bytes"):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skips where one cannot be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_is_cleared(server: FileServer, small_disk: Path, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data, ranges=False, announce_length=False)
    store = ModelStore(small_disk)
    with pytest.raises(DownloadFailed, match="free"):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


def test_a_write_that_fails_discards_the_part(
    server: FileServer, store: ModelStore, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/tiny.gguf"] = Served(data)
    real = DownloadPart.append

    def full(part: DownloadPart, piece: bytes) -> None:
        if part.nbytes > 100_000:
            part._file.close()
            raise part._failure(OSError(28, "No space left on device"))
        real(part, piece)

    monkeypatch.setattr(DownloadPart, "append", full)
    with pytest.raises(DownloadFailed, match="make room"):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, server: FileServer, data: bytes) -> None:
    (tmp_path / "file").write_text("")
    server.files["/tiny.gguf"] = Served(data)
    with pytest.raises(DownloadFailed, match="EDGEINFER_HOME"):
        ModelStore(tmp_path / "file" / "models").pull(server.url("/tiny.gguf"))


@pytest.mark.parametrize("name", ["..%2f..%2fevil.gguf", "%2e%2e.gguf", ".hidden.gguf", "a%00b.gguf", "model.bin", ""])
def test_names_from_addresses_never_leave_the_folder(
    server: FileServer, store: ModelStore, data: bytes, name: str
) -> None:
    server.files[f"/{name}"] = Served(data)
    try:
        model = store.pull(server.url(f"/{name}"))
    except DownloadFailed:
        assert left_behind(store) == []
    else:
        assert model.path.parent == store.root
        assert model.path.name == "evil.gguf"


def test_a_full_disk_is_never_taken_for_another_pull(server: FileServer, small_disk: Path, data: bytes) -> None:
    server.files["/tiny.gguf"] = Served(data)
    store = ModelStore(small_disk / "models")
    store.root.mkdir()
    with suppress(OSError), (small_disk / "filling").open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    for _ in range(2):
        with pytest.raises(DownloadFailed, match=rf"needs .*\({len(data)} bytes\).*are free; make room there"):
            store.pull(server.url("/tiny.gguf"))
        assert left_behind(store) == []
