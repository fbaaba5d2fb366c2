"""Two pulls at once, stale locks, full disks, folders that cannot be written, hostile names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, Served
from tiny_models import write_model

from edgeinfer.errors import DownloadFailed
from edgeinfer.models.download.part import Part
from edgeinfer.models.gguf import Header
from edgeinfer.models.store import Store

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A model file of half a mebibyte."""
    return write_model(tmp_path / "source.gguf")


def left_behind(store: Store) -> list[str]:
    """Names of all files in the store's folder."""
    return sorted(path.name for path in store.root.iterdir())


PULL = """
import sys
from pathlib import Path
from edgeinfer.models.store import Store
print(Store(Path(sys.argv[1])).pull(sys.argv[2]).name)
"""


def test_a_second_process_is_told_who_is_pulling(server: FileServer, store: Store, data: bytes) -> None:
    go_on = threading.Event()
    server.files["/tiny.gguf"] = Served(data, stall=go_on)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", PULL, str(store.root), server.url("/tiny.gguf")]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as other:
        while not any(request.sent_bytes >= len(data) // 4 and request.range is None for request in server.log):
            assert other.poll() is None
            threading.Event().wait(0.02)
        with pytest.raises(DownloadFailed, match=f"process {other.pid} "):
            store.pull(server.url("/tiny.gguf"))
        go_on.set()
        output, _ = other.communicate(timeout=60)
    assert output.strip() == "tiny"
    assert store.find("tiny").path.read_bytes() == data
    assert left_behind(store) == ["tiny.gguf", "tiny.json"]


@pytest.mark.parametrize("owner", [{"pid": 2**22 + 1, "started": 1.0}, {"pid": os.getpid(), "started": 1.0}])
def test_a_lock_whose_owner_is_gone_is_taken_over(
    server: FileServer, store: Store, data: bytes, owner: dict[str, float], monkeypatch: pytest.MonkeyPatch
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
    server: FileServer, store: Store, data: bytes, monkeypatch: pytest.MonkeyPatch
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
    store = Store(small_disk)
    with pytest.raises(DownloadFailed, match="free"):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


def test_a_write_that_fails_discards_the_part(
    server: FileServer, store: Store, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/tiny.gguf"] = Served(data)
    real = Part.append

    def full(part: Part, piece: bytes) -> None:
        if part.nbytes > 100_000:
            part._file.close()
            raise part._failure(OSError(28, "No space left on device"))
        real(part, piece)

    monkeypatch.setattr(Part, "append", full)
    with pytest.raises(DownloadFailed, match="make room"):
        store.pull(server.url("/tiny.gguf"))
    assert left_behind(store) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, server: FileServer, data: bytes) -> None:
    (tmp_path / "file").write_text("")
    server.files["/tiny.gguf"] = Served(data)
    with pytest.raises(DownloadFailed, match="EDGEINFER_HOME"):
        Store(tmp_path / "file" / "models").pull(server.url("/tiny.gguf"))


@pytest.mark.parametrize("name", ["..%2f..%2fevil.gguf", "%2e%2e.gguf", ".hidden.gguf", "a%00b.gguf", "model.bin", ""])
def test_names_from_addresses_never_leave_the_folder(server: FileServer, store: Store, data: bytes, name: str) -> None:
    server.files[f"/{name}"] = Served(data)
    try:
        model = store.pull(server.url(f"/{name}"))
    except DownloadFailed:
        assert left_behind(store) == []
    else:
        assert model.path.parent == store.root
        assert model.path.name == "evil.gguf"
