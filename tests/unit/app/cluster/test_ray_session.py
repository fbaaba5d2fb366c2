"""Ray is asked for only where it is wanted, and where it is missing the error says what to install."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgeinfer.ray
from edgeinfer.app.cli import main
from edgeinfer.app.cluster import ray_session
from edgeinfer.app.cluster.application import replica_range, require_servable
from edgeinfer.app.cluster.cluster_plan import node_cpus
from edgeinfer.app.cluster.ray_session import MOST_FOLDER_BYTES, ray_folder
from edgeinfer.app.mcp.servers import ToolServer
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.errors import BadSetting


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def found_but_ray(name: str, package: str | None = None) -> object:
        return None if name == "ray" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", found_but_ray)


def test_the_module_for_serve_loads_neither_ray_nor_numpy() -> None:
    code = "import edgeinfer.ray, sys; print({'ray', 'numpy', 'numba', 'fastapi'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_without_ray_the_application_says_what_to_install(without_ray: None) -> None:
    with pytest.raises(BadSetting, match=r"--ray needs ray: pip install 'edgeinfer\[ray\]'"):
        edgeinfer.ray.app  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        edgeinfer.ray.other  # noqa: B018


def test_without_ray_the_command_says_what_to_install(
    without_ray: None, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "--ray", "-m", "nothing"])
    assert left.value.code == 1
    assert capsys.readouterr().err == "error: --ray needs ray: pip install 'edgeinfer[ray]'\n"


def test_replicas_go_with_ray(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "--replicas", "2"])
    assert left.value.code == 1
    assert "--replicas goes with --ray" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "counts"), [("4", (4, 4)), ("1-8", (1, 8)), (" 2-2 ", (2, 2))])
def test_how_many_replicas(text: str, counts: tuple[int, int]) -> None:
    assert replica_range(text) == counts


@pytest.mark.parametrize("text", ["0", "8-1", "-3", "many", "1-", "", "1-2-3", "999999"])
def test_what_is_no_number_of_replicas(text: str) -> None:
    with pytest.raises(BadSetting, match="a number such as 4, or a range such as 1-8"):
        replica_range(text)


def test_servers_of_tools_stay_on_one_computer() -> None:
    with pytest.raises(BadSetting, match="--mcp starts programs of one computer"):
        require_servable(ServerOptions(tools=(ToolServer("files", ("program",)),)))


def test_the_cpus_of_living_nodes() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0, "memory": 1}},
        {"Alive": False, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"memory": 1}},
    ]
    assert node_cpus(nodes) == [8.0]


@pytest.mark.skipif(os.name != "posix", reason="Windows has access lists")
def test_rays_files_are_in_a_folder_of_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session.tempfile, "gettempdir", lambda: str(tmp_path))
    found = ray_folder(tmp_path / ("long" * MOST_FOLDER_BYTES))
    assert found.parent.parent == tmp_path
    assert found.parent.stat().st_mode & 0o777 == 0o700
    found.parent.chmod(0o777)  # as Ray itself does with its own folder
    assert ray_folder(tmp_path / ("long" * MOST_FOLDER_BYTES)) == found
    assert found.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.name != "posix", reason="Windows has access lists")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ray_session.os, "getuid", lambda: 12345)
    with pytest.raises(BadSetting, match="belongs to another user"):
        ray_folder(tmp_path / ("long" * MOST_FOLDER_BYTES))
