"""Memory in a file: what leaves it comes back unchanged, no more stays than asked for, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgeinfer.backends.cpu.memory.kv_file import PAGE_BYTES, KVFile
from edgeinfer.backends.memories import kv_folder
from edgeinfer.errors import BadSetting, DeviceFailed, DoesNotFit
from tests.resident import require_disk, resident_bytes
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can be told which pages leave memory")
N_PAGES, MOST = 256, 64
EVERY = np.arange(N_PAGES)


@pytest.fixture
def file(home: Path) -> Iterator[KVFile]:
    require_disk(home)
    made = KVFile(N_PAGES * PAGE_BYTES, MOST * PAGE_BYTES)
    yield made
    made.close()


def filled(file: KVFile) -> np.ndarray:
    """The contents of a file that has been filled with random bytes."""
    contents = np.random.default_rng(0).integers(0, 256, file.n_bytes, np.uint8)
    for first in range(0, N_PAGES, 16):
        file.use(EVERY[first : first + 16])
        part = slice(first * PAGE_BYTES, (first + 16) * PAGE_BYTES)
        file.memory[part] = contents[part]
    return contents


def test_what_has_left_comes_back_unchanged_with_and_without_use(file: KVFile) -> None:
    contents = filled(file)
    assert resident_bytes(file.memory) == file.resident_bytes <= MOST * PAGE_BYTES
    file.empty()
    assert resident_bytes(file.memory) == file.resident_bytes == 0
    assert np.array_equal(file.memory, contents)
    file.empty()
    for first in range(0, N_PAGES, 8):
        file.use(EVERY[first : first + 8])
        part = slice(first * PAGE_BYTES, (first + 8) * PAGE_BYTES)
        assert np.array_equal(file.memory[part], contents[part])
    assert resident_bytes(file.memory) == file.resident_bytes <= MOST * PAGE_BYTES


def is_in(file: KVFile, page: int) -> bool:
    return resident_bytes(file.memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]) > 0


def test_what_was_not_used_for_longest_leaves_first(file: KVFile) -> None:
    filled(file)
    file.empty()
    for page in range(MOST):
        file.use(EVERY[page : page + 1])
    file.use(EVERY[:4])
    file.use(EVERY[MOST : MOST + 1])
    until(lambda: is_in(file, MOST))  # the system reads it while we go on
    assert all(is_in(file, page) for page in (*range(4), MOST - 1, MOST))
    assert not any(is_in(file, page) for page in range(4, 12))
    assert file.resident_bytes == (MOST - MOST // 8) * PAGE_BYTES


def test_in_turn_those_used_last_leave_first(file: KVFile) -> None:
    filled(file)
    file.empty()
    for _ in range(3):
        for page in range(N_PAGES):
            file.use(EVERY[page : page + 1], in_turn=True)
    until(lambda: is_in(file, N_PAGES - 1))
    assert sum(is_in(file, page) for page in range(MOST)) > MOST // 2
    assert file.resident_bytes <= MOST * PAGE_BYTES


def test_what_is_used_at_once_stays_however_much_it_is(file: KVFile) -> None:
    contents = filled(file)
    file.use(EVERY)
    assert np.array_equal(file.memory, contents)
    assert resident_bytes(file.memory) == file.n_bytes
    file.use(EVERY[:8], ahead=EVERY[8:16])
    assert all(is_in(file, page) for page in range(16))
    assert resident_bytes(file.memory) <= MOST * PAGE_BYTES
    file.use(EVERY[32:40], ahead=EVERY[100:200])  # for which there is no room
    assert not is_in(file, 150)


def test_the_file_has_no_name_and_is_private(file: KVFile) -> None:
    told = os.fstat(file._descriptor)
    assert (told.st_nlink, stat.S_IMODE(told.st_mode)) == (0, 0o600)
    assert told.st_blocks * 512 >= file.n_bytes  # all of its space is taken
    assert list(kv_folder().iterdir()) == []
    assert stat.S_IMODE(kv_folder().stat().st_mode) == 0o700
    file.close()
    file.close()


def test_a_killed_program_leaves_nothing(home: Path) -> None:
    require_disk(home)
    text = (
        "from edgeinfer.backends.cpu.memory.kv_file import KVFile\n"
        "import time\n"
        "file = KVFile(50_000_000, 1_000_000)\nfile.memory[:] = 1\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert list(kv_folder().iterdir()) == []
        child.send_signal(signal.SIGKILL)
    assert list(kv_folder().iterdir()) == []


def test_a_full_disk_is_told_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_disk(home)
    n_bytes = 10 * psutil.disk_usage(str(home)).total
    with pytest.raises(DoesNotFit, match=r"disk space in .*kv, where .* are free; make room there.*--ctx"):
        KVFile(n_bytes, PAGE_BYTES)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(DoesNotFit, match="are free"):
        KVFile(PAGE_BYTES, PAGE_BYTES)
    assert list(kv_folder().iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("EDGEINFER_HOME", str(tmp_path / "home"))
    with pytest.raises(BadSetting, match=r"cannot keep a file in .*home/kv: .*; set EDGEINFER_HOME"):
        KVFile(PAGE_BYTES, PAGE_BYTES)


def test_a_folder_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shm = Path("/dev/shm")
    if not any(part.mountpoint == str(shm) and part.fstype == "tmpfs" for part in psutil.disk_partitions(all=True)):
        pytest.skip("there is no file system in memory here")
    folder = shm / f"edgeinfer-test-{os.getpid()}"
    monkeypatch.setenv("EDGEINFER_HOME", str(folder))
    try:
        with pytest.raises(BadSetting, match=r"would save nothing: .* is in memory itself \(tmpfs\)"):
            KVFile(PAGE_BYTES, PAGE_BYTES)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_disk_that_fails_loses_nothing(file: KVFile) -> None:
    contents = filled(file)
    works, file._sync = file._sync, lambda *_: -1
    with pytest.raises(DeviceFailed, match="keys and values cannot be written to"):
        file.use(EVERY[:40])
    assert np.array_equal(file.memory, contents)
    file._sync = works
    file.empty()
    assert np.array_equal(file.memory, contents)
