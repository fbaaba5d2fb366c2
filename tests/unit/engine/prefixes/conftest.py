"""A store of prefixes of its own for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeinfer.engine.prefixes.store import PrefixStore
from tests.unit.engine.prefixes.stored import PAGE_BYTES, Usage


@pytest.fixture
def roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full this machine's disk is."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**11, 9 * 10**11))


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return PrefixStore(tmp_path / "prefixes" / "model", 10**8, PAGE_BYTES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes" / "model"
