"""The command that runs a module of edgeinfer in a new process.

In: a module's name. Out: a command and its environment. A program that edgeinfer was packed into has no Python to
start: it starts itself with an option that makes its start-up hook (`edgeinfer.app.packing`) run the module instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKED_OPTION = "--edgeinfer-module"


def is_packed() -> bool:
    """Whether this program was packed with its Python (by PyInstaller)."""
    return bool(getattr(sys, "frozen", False))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as `python -m` does, for use with `environment`.

    With -P, Python does not import files of the current folder, such as a user's types.py.
    """
    start = [sys.executable, PACKED_OPTION] if is_packed() else [sys.executable, "-P", "-m"]
    return [*start, module, *arguments]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child finds the same edgeinfer as this process."""
    here = Path(__file__).resolve().parents[2]
    if is_packed() or here.name in ("site-packages", "dist-packages"):
        return dict(inherited)  # found there anyway; in PYTHONPATH, packages there would shadow Python's own
    before = inherited.get("PYTHONPATH")
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(here), before] if before else [str(here)])}
