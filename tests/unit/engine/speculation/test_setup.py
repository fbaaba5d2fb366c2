"""Loops are ready when a model is, without a compiler in this process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOOPS = """
import sys
from edgeinfer.engine.speculation import setup
from edgeinfer.engine.speculation.drafts import LEARN, LOOK
setup.loops_of = lambda drafters: [LEARN, LOOK]
library = setup.Loops().library()
assert library.n_compiled == {n_compiled}, library.n_compiled
assert library.address(LEARN) and library.address(LOOK)
assert library.n_compiled == {n_compiled}, library.n_compiled
assert "numba" not in sys.modules
"""


def test_loops_are_compiled_by_others_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for n_compiled in (2, 0):
        subprocess.run([sys.executable, "-c", LOOPS.format(n_compiled=n_compiled)], check=True)
