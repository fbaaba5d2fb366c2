"""The command that starts a process of edgeinfer: it finds this package, and nothing of the folder it is started in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import edgeinfer
from edgeinfer import process
from edgeinfer.process import command, environment


def test_a_child_runs_this_package_and_nothing_of_its_folder(tmp_path: Path) -> None:
    for name in ("types.py", "edgeinfer.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the folder was run')\n")
    found = subprocess.run(
        command("edgeinfer", "--version"),
        cwd=tmp_path,
        env=environment({name: value for name, value in os.environ.items() if name != "PYTHONPATH"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert edgeinfer.__version__ in found.stdout


def test_what_was_found_before_is_found_still(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(process, "__file__", str(tmp_path / "edgeinfer" / "process.py"))
    assert environment({"A": "b"}) == {"A": "b", "PYTHONPATH": str(tmp_path)}
    assert environment({"PYTHONPATH": "/x"})["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/x"


def test_an_installed_package_is_not_found_before_pythons_own_modules(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(process, "__file__", str(tmp_path / "site-packages" / "edgeinfer" / "process.py"))
    assert environment({"A": "b"}) == {"A": "b"}
