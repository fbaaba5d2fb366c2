"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.models.download.policy import DownloadPolicy
from edgeinfer.models.store import ModelStore
from tests.file_server import FileServer, serving

QUICK = DownloadPolicy(
    attempts=3, backoff_s=0.01, stall_s=0.5, chunk_bytes=1 << 14, progress_bytes=1 << 14, report_every_s=0
)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of tests are asked directly, whatever the machine is set up with."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A web server that can misbehave."""
    with serving() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """An empty store that loses patience quickly."""
    return ModelStore(tmp_path / "models", QUICK)
