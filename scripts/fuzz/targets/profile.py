"""Profiles of machines (TOML)."""

from __future__ import annotations

from pathlib import Path

import edgeinfer.scheduling.machine
from edgeinfer.scheduling.machine.profile_file import parse_profile


def seeds() -> list[bytes]:
    """The built-in machines."""
    folder = Path(edgeinfer.scheduling.machine.__file__).parent / "catalogue"
    return [path.read_bytes() for path in sorted(folder.glob("*.toml"))]


def run(data: bytes) -> None:
    """Read it."""
    parse_profile(data.decode("utf-8", "replace"), "fuzz")
