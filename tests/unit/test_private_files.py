"""What others may do with files and folders of ours, whatever the umask."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer import private_files
from edgeinfer.private_files import private_folder, privately, read_own, readable_folder, readably
from edgeinfer.temporary import temporary_file, temporary_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions are those of POSIX")


@pytest.fixture(params=[0, 0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_what_they_are_meant_to_be(tmp_path: Path, umask: int) -> None:
    private_folder(tmp_path / "a" / "b" / "private")
    readable_folder(tmp_path / "c" / "readable")
    with open(tmp_path / "a" / "file", "w", opener=privately), open(tmp_path / "c" / "file", "wb", opener=readably):
        pass
    assert mode(tmp_path / "a" / "b" / "private") == 0o700
    assert mode(tmp_path / "a" / "file") == 0o600
    for folder in ("a", "a/b", "c", "c/readable"):
        assert mode(tmp_path / folder) == 0o755 & ~umask
    assert mode(tmp_path / "c" / "file") == 0o644 & ~umask


def test_what_is_temporary_is_private(tmp_path: Path, umask: int) -> None:
    with temporary_folder("edgeinfer", tmp_path) as one, temporary_folder("edgeinfer", tmp_path) as two:
        assert mode(Path(one)) == mode(Path(two)) == 0o700
        assert one != two
    handle, name = temporary_file(tmp_path / "file")
    os.close(handle)
    assert mode(Path(name)) == 0o600


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    private_folder(shared)
    assert mode(shared) == 0o2775
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError):
        private_folder(tmp_path / "file")
    with pytest.raises(OSError):
        private_folder(tmp_path / "file" / "below")


def test_a_file_that_others_could_write_is_not_read(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "code"
    with open(path, "wb", opener=readably) as file:
        file.write(b"code")
    assert read_own(path) == b"code"
    for others in (0o666, 0o664, 0o646):
        path.chmod(others)
        with pytest.raises(PermissionError, match="another user"):
            read_own(path)
    path.write_bytes(b"code")  # as it is made anew
    assert read_own(path) == b"code"
    assert mode(path) & 0o022 == 0


def test_a_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "code"
    path.write_bytes(b"code")
    path.chmod(0o644)
    monkeypatch.setattr(private_files.os, "geteuid", lambda: 4321)
    if path.stat().st_uid == 0:  # what root wrote everybody may trust
        assert read_own(path) == b"code"
        os.chown(path, 1234, -1)
    with pytest.raises(PermissionError):
        read_own(path)


def test_where_there_are_no_permissions_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on exFAT, where all files are what they were mounted as."""
    path = tmp_path / "code"
    path.write_bytes(b"code")
    path.chmod(0o777)
    monkeypatch.setattr(private_files.os, "fchmod", lambda descriptor, wanted: None)
    assert read_own(path) == b"code"
