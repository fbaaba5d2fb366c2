"""Packing that is stopped: by kill -9, by a full disk, by a folder or a model file that does not play along."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.bundles.assembly import Assembly
from edgeinfer.errors import BadBundle, PackFailed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.bundle_file import part_path
from edgeinfer.steps import no_progress
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA
from tests.unit.backends.cpu.bundles.bundle_models import Packable, assert_holds, packable

resource = pytest.importorskip("resource")  # which says that processes can be limited, and killed

PACKING = """
import sys, time
from pathlib import Path
from tests.unit.backends.cpu.bundles.bundle_models import packable
from edgeinfer.backends.cpu.bundles import writing
from edgeinfer.backends.cpu.catalogue import kernel_library

writing.GROUP_BYTES = 1

def until(what, done, total):
    print(what, done, total, flush=True)
    if done == int(sys.argv[3]):
        time.sleep(600)  # to be killed

with packable(Path(sys.argv[1])) as model:
    model.pack(Path(sys.argv[2]), kernel_library(), until)
"""


@pytest.fixture
def model() -> Iterator[Packable]:
    with packable(DATA / "gemma3-f32.gguf") as opened:
        yield opened


@pytest.fixture
def large_model(tmp_path: Path) -> Iterator[Packable]:
    """A model of some megabytes, in several bundles."""
    path = write_tiny_llama(tmp_path / "large.gguf", n_tokens=16384)
    with packable(path) as opened:
        yield opened


def packed_until(path: Path, source: Path, n_done: int) -> None:
    """Pack in a process of its own, which is killed when so many bundles are done."""
    root = Path(__file__).resolve().parents[5]
    command = [sys.executable, "-c", PACKING, str(source), str(path), str(n_done)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            what, done, total = line.split()
            assert what == "packing"
            assert int(total) > n_done
            if int(done) == n_done:
                process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_killed_pack_is_gone_on_with(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    path, whole = tmp_path / "model.bundles", tmp_path / "whole.bundles"
    model.pack(whole, library)
    n_bundles = len(model.contents.bundles)
    packed_until(path, model.model.file.path, 3)
    assert not path.exists()
    assert part_path(path).exists()
    with pytest.raises(BadBundle, match="half-written"):
        model.open(part_path(path))
    shown: list[tuple[str, int, int]] = []
    packed = model.pack(path, library, lambda *step: shown.append(step))
    assert ("checking what is packed already", 3, 3) in shown
    assert ("packing", 3, n_bundles) in shown
    assert packed.kept_bytes == sum(bundle.padded_bytes for bundle in model.contents.bundles[:3])
    assert path.read_bytes() == whole.read_bytes()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.bundles", "whole.bundles"]


def test_what_was_damaged_in_between_is_packed_again(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    path, whole = tmp_path / "model.bundles", tmp_path / "whole.bundles"
    model.pack(whole, library)
    packed_until(path, model.model.file.path, 3)
    with part_path(path).open("r+b") as file:
        file.seek(4096 + model.contents.bundles[1].offset + 10)
        file.write(b"\xff" * 1000)
    packed = model.pack(path, library)
    assert packed.kept_bytes == sum(model.contents.bundles[number].padded_bytes for number in (0, 2))
    assert path.read_bytes() == whole.read_bytes()


def test_half_a_file_that_was_cut_is_gone_on_with(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    path, whole = tmp_path / "model.bundles", tmp_path / "whole.bundles"
    model.pack(whole, library)
    packed_until(path, model.model.file.path, 3)
    stopped, second = part_path(path).read_bytes(), model.contents.bundles[1].offset
    for n_bytes, n_kept in ((4096 + second + 10, 1), (4096, 0), (100, 0), (0, 0)):
        part_path(path).write_bytes(stopped[:n_bytes])
        packed = model.pack(path, library)
        assert packed.kept_bytes == n_kept * second
        assert path.read_bytes() == whole.read_bytes()


def test_a_pack_that_was_killed_before_the_file_had_its_name(
    model: Packable, library: KernelLibrary, tmp_path: Path
) -> None:
    path = tmp_path / "model.bundles"
    model.pack(path, library)
    whole = path.read_bytes()
    os.replace(path, part_path(path))
    assert model.pack(path, library).kept_bytes == model.contents.data_bytes
    assert path.read_bytes() == whole


def test_a_half_written_file_of_something_else_is_begun_anew(
    model: Packable, library: KernelLibrary, tmp_path: Path
) -> None:
    path = tmp_path / "model.bundles"
    packed_until(path, DATA / "llama-q8_0.gguf", 1)
    assert model.pack(path, library).kept_bytes == 0
    with model.open(path) as bundles:
        source = bundles.source()
        assert_holds(bundles, source, model.packed(library))
        source.close()


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[None]:
    """A file system of so many bytes in a folder; skips where none can be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_seen_before_anything_is_written(
    large_model: Packable, library: KernelLibrary, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 1 << 20):
        path = tmp_path / "disk" / "model.bundles"
        with pytest.raises(PackFailed, match=r"needs \d+\.\d MB more in .*disk.*EDGEINFER_HOME"):
            large_model.pack(path, library)
        assert not path.exists()


def test_a_disk_that_fills_up_keeps_what_is_there(
    large_model: Packable, library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.backends.cpu.bundles.writing.GROUP_BYTES", 1)
    data_bytes = large_model.contents.data_bytes
    with small_disk(tmp_path / "disk", data_bytes + (1 << 20)):
        path, other = tmp_path / "disk" / "model.bundles", tmp_path / "disk" / "other"

        def fill(what: str, done: int, total: int) -> None:
            if done == 2 and not other.exists():
                other.write_bytes(bytes(data_bytes // 2))

        with pytest.raises(PackFailed) as failed:
            large_model.pack(path, library, fill)
        assert "goes on from what is in model.bundles.part" in str(failed.value)
        assert f"in {path.parent}" in str(failed.value)
        assert not path.exists()
        other.unlink()
        packed = large_model.pack(path, library)
        assert packed.kept_bytes > 0
        with large_model.open(path) as bundles:
            source = bundles.source()
            assert_holds(bundles, source, large_model.packed(library))
            source.close()


def test_a_limit_of_the_size_of_files_is_told(large_model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    path = tmp_path / "model.bundles"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(PackFailed, match=r"takes no file of \d+\.\d MB.*EDGEINFER_HOME"):
            large_model.pack(path, library)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not path.exists()
    large_model.pack(path, library)
    large_model.open(path).close()


def test_a_folder_that_cannot_be_written_is_told(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(PackFailed, match=r"cannot be written: .*EDGEINFER_HOME"):
        model.pack(tmp_path / "file" / "model.bundles", library)
    if os.geteuid():
        (tmp_path / "locked").mkdir(0o500)
        with pytest.raises(PackFailed, match=r"Permission denied.*EDGEINFER_HOME"):
            model.pack(tmp_path / "locked" / "model.bundles", library)
    with small_disk(tmp_path / "disk", 8 << 20):
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        with pytest.raises(PackFailed, match=r"Read-only file system.*EDGEINFER_HOME"):
            model.pack(tmp_path / "disk" / "model.bundles", library)


def test_two_programs_do_not_pack_to_one_file(model: Packable, library: KernelLibrary, tmp_path: Path) -> None:
    """Another one waits, says for whom, and can be called off."""
    path = tmp_path / "model.bundles"
    told: list[str] = []

    def call_off(what: str, done: int, total: int) -> None:
        told.append(what)
        raise InterruptedError

    def at_the_same_time(what: str, done: int, total: int) -> None:
        with pytest.raises((InterruptedError, PackFailed)):
            model.pack(path, library, call_off)

    model.pack(path, library, at_the_same_time)
    assert told
    assert all(f"process {os.getpid()}" in each for each in told)
    model.open(path).close()


def test_a_model_that_changes_while_it_is_packed_is_refused(library: KernelLibrary, tmp_path: Path) -> None:
    source, path = tmp_path / "model.gguf", tmp_path / "model.bundles"
    shutil.copy(DATA / "gemma3-f32.gguf", source)

    def change(what: str, done: int, total: int) -> None:
        later = time.time_ns() + 10**9
        os.utime(source, ns=(later, later))

    with packable(source) as model:
        with pytest.raises(PackFailed, match="changed while it was packed"):
            model.pack(path, library, change)
        assert list(tmp_path.iterdir()) == [source]
        model.pack(path, library)
        source.unlink()
        with pytest.raises(PackFailed, match="cannot be read any more"):
            model.pack(path, library)


def test_a_model_that_changed_between_two_packs_is_begun_anew(library: KernelLibrary, tmp_path: Path) -> None:
    source, path = tmp_path / "model.gguf", tmp_path / "model.bundles"
    shutil.copy(DATA / "gemma3-f32.gguf", source)
    packed_until(path, source, 3)
    os.utime(source, (1, 1))
    with packable(source) as model:
        assert model.pack(path, library).kept_bytes == 0


def test_memory_is_that_of_a_few_bundles(
    large_model: Packable, library: KernelLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.backends.cpu.bundles.writing.GROUP_BYTES", 1 << 20)
    given_back: list[int] = []
    monkeypatch.setattr(large_model.model.file, "release", lambda: given_back.append(1))
    alive, most = [0], [0]
    made = Assembly.bundle

    def counted(assembly: Assembly, bundle: Bundle) -> np.ndarray:
        data = made(assembly, bundle)
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        weakref.finalize(data, lambda: alive.__setitem__(0, alive[0] - 1))
        return data

    monkeypatch.setattr(Assembly, "bundle", counted)
    large_model.pack(tmp_path / "model.bundles", library, no_progress)
    assert len(large_model.contents.bundles) > 8
    assert len(given_back) >= 4
    assert most[0] <= 3
