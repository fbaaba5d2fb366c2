"""Small files that the program keeps for itself: damaged ones count as not there."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from edgeinfer.engine.running import running, running_folder
from edgeinfer.file_lock import is_held
from edgeinfer.models import unfinished
from edgeinfer.models.store_files import FORMAT, read_manifest

DEEP = "[" * 99_999
pytestmark = pytest.mark.usefixtures("uncollected")


@pytest.mark.parametrize("text", [DEEP, '{"pid": 1e999, "started": 1}', '{"pid": 1, "started": 1' + "0" * 400 + "}"])
def test_a_lock_without_an_owner_is_held_by_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.lock").write_text(text)
    assert not is_held(tmp_path / "a.lock")


@pytest.mark.parametrize("nbytes", [DEEP, "1e999", "null"])
def test_manifests_and_notes_of_pulls(tmp_path: Path, nbytes: str) -> None:
    pull, manifest = tmp_path / "a.pull", tmp_path / "a.json"
    pull.write_text(f'{{"source": "a", "name": "b", "parts": [], "nbytes": {nbytes}}}')
    assert unfinished._read(pull) is None
    files = f'[{{"path": "a.gguf", "nbytes": {nbytes}, "sha256": null}}]'
    record = json.dumps({"format": FORMAT, "name": "a", "source": "a", "key": "a", "asked": "a"})
    manifest.write_text(f'{record[:-1]}, "files": {files}}}')
    assert read_manifest(manifest) is None


@pytest.mark.parametrize("odd", [{"started": 10**400}, {"started": float("inf")}, {"pid": -1}, {"pid": 2**80}])
def test_notes_of_processes_that_cannot_be(home: Path, odd: dict[str, object]) -> None:
    note = {"host": platform.node(), "pid": os.getpid(), "started": 1.0, "command": "serve", **odd}
    running_folder().mkdir(parents=True)
    path = running_folder() / "1.process"
    path.write_text(json.dumps(note))
    assert running() == ()
    assert not path.exists()
