"""What tests of the models screen share: a server of files, a catalogue in a home of its own, a model in its store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.catalogue.catalogue import Catalogue
from edgeinfer.models.store import ModelStore
from tests.app.tui.models_app import QUICK
from tests.file_server import FileServer, serving


@pytest.fixture(autouse=True)
def keys_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests press keys as fast as only pastes come; where pastes are tested, this is undone."""
    monkeypatch.setattr("edgeinfer.app.tui.widgets.text_fields.PASTED_S", 0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as running:
        yield running


@pytest.fixture
def catalogue(home: Path) -> Iterator[Catalogue]:
    with Catalogue(ModelStore(home / "models", QUICK)) as found:
        yield found


@pytest.fixture
def tiny(catalogue: Catalogue, tiny_model: Path) -> str:
    """A model of the store's own."""
    catalogue.store.root.mkdir(parents=True, exist_ok=True)
    shutil.copy(tiny_model, catalogue.store.root / "tiny.gguf")
    return "tiny"
