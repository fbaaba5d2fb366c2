"""What PyInstaller has to know to pack programs that use edgeinfer: it finds this by an entry point."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Folders of hooks."""
    return [str(Path(__file__).parent / "hooks")]
