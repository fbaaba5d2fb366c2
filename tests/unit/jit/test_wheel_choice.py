"""The extra `kernels` asks for wheels of this very version, and pip finds the one for each platform."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from edgeinfer import __version__
from tests.unit.jit.wheel_code import EVERY_WHEEL, ROOT, TRIPLES, make

SYSTEMS = {
    ("linux", "x86_64"): "manylinux_2_17_x86_64",
    ("linux", "aarch64"): "manylinux_2_17_aarch64",
    ("darwin", "x86_64"): "macosx_10_15_x86_64",
    ("darwin", "arm64"): "macosx_11_0_arm64",
    ("win32", "AMD64"): "win_amd64",
}
"""What Python calls a system and its architecture, and the tag of the wheel for it."""
LATER_SYSTEMS = {"macosx_14_0_x86_64": "macosx_10_15_x86_64", "macosx_15_0_arm64": "macosx_11_0_arm64"}
WITHOUT_WHEEL = ("win_arm64", "win32", "musllinux_1_2_x86_64", "macosx_10_14_x86_64")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel for every platform."""
    folder = tmp_path_factory.mktemp("wheels")
    assert len(make(folder, *EVERY_WHEEL, "--only", "doze")) == len(TRIPLES)
    return folder


def requirement() -> Requirement:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__
    (line,) = project["optional-dependencies"]["kernels"]
    return Requirement(line)


def asked_of(system: str, machine: str) -> bool:
    """Whether the extra asks for the package there."""
    marker = requirement().marker
    assert marker is not None
    return marker.evaluate({"sys_platform": system, "platform_machine": machine})


def found_by_pip(wheels: Path, platform: str, folder: Path, version: str = str(requirement().specifier)) -> list[str]:
    """The names of the wheels that pip takes from the folder for a platform."""
    find = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-index", "--find-links", str(wheels)]
    of_platform = ["--only-binary", ":all:", "--platform", platform, "--dest", str(folder)]
    subprocess.run([*find, *of_platform, f"{requirement().name}{version}"], capture_output=True, check=False)
    return [path.name for path in folder.glob("*")]


def test_the_extra_asks_for_this_version_where_there_is_a_wheel() -> None:
    assert str(requirement().specifier) == f"=={__version__}"
    assert set(SYSTEMS.values()) == set(TRIPLES)
    assert all(asked_of(*place) for place in SYSTEMS)
    assert not any(asked_of(*place) for place in [("win32", "ARM64"), ("linux", "riscv64"), ("freebsd14", "amd64")])


@pytest.mark.parametrize(("platform", "tag"), [*((tag, tag) for tag in TRIPLES), *LATER_SYSTEMS.items()])
def test_pip_takes_the_wheel_of_a_platform(wheels: Path, tmp_path: Path, platform: str, tag: str) -> None:
    assert found_by_pip(wheels, platform, tmp_path) == [f"edgeinfer_kernels-{__version__}-py3-none-{tag}.whl"]


@pytest.mark.parametrize("platform", WITHOUT_WHEEL)
def test_pip_takes_no_wheel_of_another_platform(wheels: Path, tmp_path: Path, platform: str) -> None:
    assert found_by_pip(wheels, platform, tmp_path) == []


def test_a_wheel_says_what_it_is_and_where_it_comes_from(wheels: Path) -> None:
    (path, *_) = sorted(wheels.glob("*.whl"))
    with zipfile.ZipFile(path) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
        about = email.message_from_bytes(archive.read(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (about["Name"], about["Version"]) == ("edgeinfer-kernels", __version__)
    assert about["Requires-Python"] == project["requires-python"]
    assert about.get_all("Project-URL") == [f"{name}, {address}" for name, address in project["urls"].items()]
    assert about["Description-Content-Type"] == "text/markdown"
    assert f"serves edgeinfer {__version__} alone" in " ".join(about.get_payload().split())


def test_pip_takes_no_wheel_of_another_version(wheels: Path, tmp_path: Path) -> None:
    assert found_by_pip(wheels, "win_amd64", tmp_path, "==0.0.1") == []
