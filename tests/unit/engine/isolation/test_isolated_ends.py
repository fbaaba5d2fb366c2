"""The ends of isolated devices: nothing is left of a process that was closed, or whose parent was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeinfer.engine.isolation import process
from edgeinfer.engine.isolation.messages import RemoteFacts
from edgeinfer.engine.isolation.process import Child
from edgeinfer.errors import EngineClosed
from tests.unit.engine.isolation.test_isolation import isolated
from tests.unit.engine.run.test_executor import chain
from tests.waiting import PATIENCE_S, is_over, until


def test_nothing_is_left_of_a_closed_process(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_memory_folder", lambda: str(tmp_path))
    opened, seen = Child._opened, list[Path]()

    def watched(child: Child, *given: Any) -> RemoteFacts:
        facts = opened(child, *given)
        seen.extend(tmp_path.iterdir())
        return facts

    monkeypatch.setattr(Child, "_opened", watched)
    apart = isolated(tiny_model)
    pid = apart.pid
    assert pid is not None
    assert not seen  # a parent that is killed while a model is opened, which takes long, leaves nothing
    if sys.platform != "win32":
        assert not list(tmp_path.iterdir())  # nor afterwards
    apart.close()
    apart.close()
    assert not psutil.pid_exists(pid)
    assert not list(tmp_path.iterdir())
    assert apart.resident_bytes == 0
    with pytest.raises(EngineClosed):
        apart.evaluate(chain(0, 0, [1]))


def test_the_process_ends_with_its_parent(tiny_model: Path) -> None:
    code = f"""
import os, edgeinfer
llm = edgeinfer.load({str(tiny_model)!r}, device="reference", isolate=True, spec="off")
print(llm._pool.executor.pid, flush=True)
os._exit(3)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 3, ran.stderr
    until(lambda: is_over(int(ran.stdout)))
