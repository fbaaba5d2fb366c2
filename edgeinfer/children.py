"""Processes of edgeinfer's own: the command that runs one of its modules.

In: a module's name. Out: a command. A program that edgeinfer was packed into has no Python to start: it is started
itself, and what was packed with it (`edgeinfer.app.packing`) sees that a module is meant and runs that instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKED_OPTION = "--edgeinfer-module"


def is_packed() -> bool:
    """Whether this program was packed with its Python, so that there is none to start."""
    return bool(getattr(sys, "frozen", False))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as `python -m` does, to be run in `environment`.

    Python would look into the user's folder first (-P: it does not), and a file called types.py there is not ours to
    run.
    """
    start = [sys.executable, PACKED_OPTION] if is_packed() else [sys.executable, "-P", "-m"]
    return [*start, module, *arguments]


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """This environment, so that a child runs the same edgeinfer as this process."""
    here = Path(__file__).resolve().parent.parent
    if is_packed() or here.name in ("site-packages", "dist-packages"):
        return dict(inherited)  # a child finds it there, and first there would be other packages before Python's own
    before = inherited.get("PYTHONPATH")
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(here), before] if before else [str(here)])}
