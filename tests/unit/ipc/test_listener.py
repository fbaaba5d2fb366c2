"""Listeners of our own processes: connected to, short enough, gone with the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from edgeinfer.errors import BadSetting
from edgeinfer.ipc import channel as listener_module
from edgeinfer.ipc.channel import LocalListener
from edgeinfer.temporary import remove_leftovers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="named pipes are in no folder")
KEY = b"k" * 32


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch):
    """A folder for temporary files in which sockets find room."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def heard(listener: LocalListener) -> str:
    """What a client says that knows the key."""

    def speak() -> None:
        with Client(listener.address, authkey=KEY) as client:
            client.send("hello")

    speaker = threading.Thread(target=speak)
    speaker.start()
    with listener.accept() as connection:
        said = connection.recv()
    speaker.join()
    return said


def test_who_knows_the_key_is_heard_and_nothing_stays(short_folder: Path) -> None:
    with LocalListener(KEY) as listener:
        (folder,) = short_folder.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        assert heard(listener) == "hello"
    listener.close()
    assert list(short_folder.iterdir()) == []


def test_a_long_folder_for_temporary_files_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with LocalListener(KEY) as listener:
        assert heard(listener) == "hello"
        assert not Path(listener.address).is_relative_to(long)
    assert list(long.iterdir()) == []


def test_where_no_socket_can_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(listener_module, "_SHORT_FOLDER", str(tmp_path / ("long" * 25)))
    with pytest.raises(BadSetting, match=r"no socket can be made .*set TMPDIR"):
        LocalListener(KEY)


def test_what_a_killed_process_leaves_is_removed(short_folder: Path) -> None:
    listening = f"from edgeinfer.ipc.channel import LocalListener as L; listener = L({KEY!r})"
    command = [sys.executable, "-c", f"import os; {listening}; os.kill(os.getpid(), 9)"]
    subprocess.run(command, check=False, env={**os.environ, "TMPDIR": str(short_folder)})
    assert len(list(short_folder.iterdir())) == 1
    assert remove_leftovers(short_folder) == 1
    assert list(short_folder.iterdir()) == []
