"""Kernels compiled beforehand: a wheel for this CPU is used, and one for other sources, CPUs or systems is not."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgeinfer.backends.cpu import catalogue
from edgeinfer.jit import prebuilt
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.jit.library import KernelLibrary, cache_folder, sources_hash
from edgeinfer.jit.prebuilt import INDEX, PACKAGE, TARGETS, prebuilt_code
from tests.unit.jit.wheel_code import ROOT, make

NAMES = ("doze", "rms_norm", "copy_slots-f16", "look")
"""Kernels and functions that compile soon; the last one is a loop of speculation."""
STARTS = {"linux": (b"\x7fELF",), "windows": (b"\x64\x86",), "macos": (b"\xcf\xfa\xed\xfe",)}
"""First bytes of object files."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package for this machine."""
    wheel, *_ = make(tmp_path_factory.mktemp("wheels"), "--only", *NAMES)
    folder = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*install, str(wheel)], check=True)
    return folder


@pytest.fixture
def package(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(installed))
    return installed / PACKAGE


def opened(folder: Path) -> KernelLibrary:
    of_sources = sources_hash(*catalogue.kernel_sources())
    return KernelLibrary(folder, prebuilt_code(of_sources, cpu_features))


def test_code_of_the_package_needs_no_compiling(package: Path, tmp_path: Path) -> None:
    library = opened(tmp_path)
    assert library.has([catalogue.DOZE, catalogue.RMS_NORM, catalogue.copy_slots("f16")])
    assert not library.has([catalogue.SCALE])
    assert library.address(catalogue.RMS_NORM) > 0
    assert library.n_compiled == 0
    assert not list(tmp_path.iterdir())


def test_loops_of_speculation_are_in_it(package: Path, tmp_path: Path) -> None:
    from edgeinfer.engine.speculation.drafts import LOOK, loop_sources

    library = KernelLibrary(tmp_path, prebuilt_code(sources_hash(*loop_sources()), cpu_features))
    assert library.address(LOOK) > 0
    assert library.n_compiled == 0


def test_a_program_of_its_own_computes_with_it(package: Path, tmp_path: Path) -> None:
    """Without Numba being imported."""
    program = (
        "import sys, ctypes; from edgeinfer.backends.cpu import catalogue\n"
        "library = catalogue.kernel_library()\n"
        "pages = (ctypes.c_int64 * 4)()\n"
        "copy = library.function(catalogue.copy_slots('f16'))\n"
        "copy(0, 0, 0, 0, 0)\n"
        "print(library.n_compiled, 'numba' in sys.modules)"
    )
    environment = {"PYTHONPATH": f"{package.parent}:{ROOT}", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "False"], done.stderr


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever else a process compiled before."""
    (one,) = make(tmp_path / "one", "--only", "doze", "rms_norm", "look")
    (two,) = make(tmp_path / "two", "--processes", "1", "--only", "look", "rms_norm", "doze")
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_other_sources_are_compiled(package: Path) -> None:
    assert prebuilt_code("0" * 64, cpu_features).state == "other sources"


def test_a_cpu_without_the_features_compiles(package: Path) -> None:
    of_sources = sources_hash(*catalogue.kernel_sources())
    assert prebuilt_code(of_sources, frozenset).state == "other cpu"


def test_code_for_a_named_cpu_is_compiled(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert prebuilt_code(sources_hash(*catalogue.kernel_sources()), cpu_features).state == "overridden"


def test_objects_of_another_system_are_not_used(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "object_format", lambda: "another")
    assert prebuilt_code(sources_hash(*catalogue.kernel_sources()), cpu_features).state == "other system"


def test_the_compiler_does_not_matter(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another version of it changes the folder of what is compiled here, and not what the package serves."""
    before = cache_folder()
    monkeypatch.setattr("edgeinfer.jit.library.version", lambda _: "99.0")
    assert cache_folder() != before
    assert opened(tmp_path).address(catalogue.DOZE) > 0


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "PACKAGE", "no_such_package")
    assert prebuilt_code("0" * 64, cpu_features).state == "absent"


def spoiled(data: bytes) -> bytes:
    """An archive with a changed byte in the middle of each file."""
    changed = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            changed[info.header_offset + 30 + len(info.filename) + info.file_size // 2] ^= 0xFF
    return bytes(changed)


@pytest.mark.parametrize("damage", ["index", "hash", "archive", "code"])
def test_a_damaged_package_is_as_good_as_none(
    installed: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / PACKAGE
    copy.mkdir()
    for path in (installed / PACKAGE).iterdir():
        if path.is_file():
            data = path.read_bytes()
            if damage == "index" and path.name == INDEX:
                data = data[: len(data) // 2]
            elif damage == "hash" and path.name == INDEX:
                data = data.replace(sources_hash(*catalogue.kernel_sources()).encode(), b"0" * 64)
            elif damage == "archive" and path.suffix == ".zip":
                data = data[:100]
            elif damage == "code" and path.suffix == ".zip":
                data = spoiled(data)
            (copy / path.name).write_bytes(data)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in copy.iterdir()}
    library = opened(tmp_path / "cache")
    assert library.address(catalogue.DOZE) > 0
    assert library.n_compiled == 1
    assert {path: path.stat().st_mtime_ns for path in copy.iterdir()} == before


@pytest.mark.parametrize("system", STARTS)
def test_every_system_gets_objects_of_its_kind(tmp_path: Path, system: str) -> None:
    for wheel in make(tmp_path, "--system", system, "--only", "doze"):
        with zipfile.ZipFile(wheel) as archive:
            index = json.loads(archive.read(f"{PACKAGE}/{INDEX}"))
            assert archive.testzip() is None
            names = [name for targets in index["code"].values() for name in targets.values()]
            assert {name.partition("-")[2].removesuffix(".zip") for name in names} <= set(TARGETS)
            for name in names:
                if name.startswith("kernels"):
                    (tmp_path / name).write_bytes(archive.read(f"{PACKAGE}/{name}"))
                    with zipfile.ZipFile(tmp_path / name) as codes:
                        assert codes.read("doze.o").startswith(STARTS[system])
