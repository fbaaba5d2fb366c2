"""Information for packing programs that use edgeinfer with PyInstaller, which finds it through an entry point."""

from __future__ import annotations

from pathlib import Path


def hook_folders() -> list[str]:
    """Folders of PyInstaller hooks."""
    return [str(Path(__file__).parent / "hooks")]
