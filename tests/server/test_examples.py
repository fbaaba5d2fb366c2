"""The examples do what they say, against a server that runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.server.conftest import served

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = 'Say "hi" to \\ me.'


@pytest.mark.model
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(starter_model: Path) -> None:
    with served(starter_model) as running:
        found = subprocess.run(
            ["sh", str(EXAMPLES / "chat.sh"), QUESTION],
            env={**os.environ, "EDGEINFER_URL": running.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert len(found.stdout.split()) > 1
        assert "delta" not in found.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_node(tiny_model: Path) -> None:
    command = f"{sys.executable} -m edgeinfer"
    found = subprocess.run(
        ["node", str(EXAMPLES / "sidecar.mjs"), "the hen"],
        env={**os.environ, "EDGEINFER_COMMAND": command, "EDGEINFER_MODEL": str(tiny_model), "EDGEINFER_SPEC": "off"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr.decode()
    assert len(found.stdout) > 20
    left = [process for process in psutil.process_iter(["cmdline"]) if "SIDECAR_KEY" in (process.info["cmdline"] or ())]
    assert left == []
