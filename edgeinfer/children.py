"""Processes of edgeinfer's own: the command that runs one of its modules.

In: a module's name. Out: a command. A program that edgeinfer was packed into has no Python to start: it is started
itself, and what was packed with it (`edgeinfer.app.packing`) sees that a module is meant and runs that instead.
"""

from __future__ import annotations

import sys

PACKED_OPTION = "--edgeinfer-module"


def is_packed() -> bool:
    """Whether this program was packed with its Python, so that there is none to start."""
    return bool(getattr(sys, "frozen", False))


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as `python -m` does."""
    start = [sys.executable, PACKED_OPTION] if is_packed() else [sys.executable, "-m"]
    return [*start, module, *arguments]
