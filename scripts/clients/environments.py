"""Virtual environments of clients, and what keeps the clients silent.

In: a folder and the packages of a client. Out: its interpreter, and the versions it has.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SILENT = {
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "NO_PROXY": "127.0.0.1",
}
"""Environment variables with which nothing is sent to anybody but the server."""


def interpreter(place: Path, packages: Sequence[str]) -> Path:
    """The Python of an environment, which is made if it is not there."""
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def version(python: Path, package: str) -> str:
    """The version of a package; a package's extras, as in `package[extra]`, are no part of its name."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package.partition('[')[0]!r}))"
    return subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip()
