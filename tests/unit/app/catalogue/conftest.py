"""Fixtures of the catalogue's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.models.download.policy import DownloadPolicy
from edgeinfer.models.store import ModelStore
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import read_topology
from tests.file_server import FileServer, serving
from tests.unit.scheduling.profiles import machine

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
def store(home: Path) -> ModelStore:
    """An empty store that loses patience quickly."""
    return ModelStore(home / "models", QUICK)


@pytest.fixture
def profile(home: Path) -> Profile:
    """A kept profile of this machine, with plain rates."""
    found = replace(machine(), fingerprint=fingerprint_of(read_topology()), measured="now")
    ProfileStore().save(found)
    return found
