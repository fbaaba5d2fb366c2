"""How the models screen looks: sizes, themes, states."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from edgeinfer.app.catalogue.catalogue import Catalogue
from edgeinfer.app.tui.screens.models import ModelsScreen
from edgeinfer.app.tui.screens.questions import ModelQuestion
from edgeinfer.app.tui.widgets.model_list import ModelTable
from edgeinfer.models.store import ModelStore
from tests.app.tui.flows import wait_until
from tests.app.tui.models_app import Bare

SIZES = [(40, 12), (100, 40), (200, 60)]
THEMES = ["textual-dark", "textual-light", "ansi-dark"]


class Compare(Protocol):
    """The fixture of pytest-textual-snapshot."""

    def __call__(self, app: App[None], *, terminal_size: tuple[int, int], run_before: object) -> bool: ...


@pytest.fixture
def catalogue(home: Path, tiny_model: Path) -> Iterator[Catalogue]:
    """Two models, and a third that was begun to be fetched."""
    store = ModelStore(home / "models")
    store.root.mkdir(parents=True)
    for name in ("tiny", "a-model-with-quite-a-long-name-Q4_K_M"):
        shutil.copy(tiny_model, store.root / f"{name}.gguf")
    part = store.root / "tiny-Q8_0.gguf.part"
    part.write_bytes(bytes(250_000))
    note = {"source": "hf:user/tiny:Q8_0", "name": "tiny-Q8_0", "nbytes": 1_000_000, "parts": [str(part)]}
    (store.root / ".0.pull").write_text(json.dumps(note))
    with Catalogue(store) as found:
        yield found


async def settled(pilot: Pilot[None]) -> None:
    """Everything that is known is shown."""
    app = pilot.app
    assert isinstance(app, Bare)
    table = app.models.query_one(ModelTable)
    await wait_until(
        pilot,
        lambda: table.row_count and all(str(table.get_cell(row, "tok/s")) != "…" for row in table.rows),
    )


async def asked(pilot: Pilot[None]) -> None:
    """The question before a model is deleted."""
    await settled(pilot)
    await pilot.press("down", "delete")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ModelQuestion))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_list(snap_compare: Compare, catalogue: Catalogue, size: tuple[int, int], theme: str) -> None:
    screen = ModelsScreen(catalogue, "a-model-with-quite-a-long-name-Q4_K_M")
    assert snap_compare(Bare(screen, theme), terminal_size=size, run_before=settled)


@pytest.mark.parametrize("size", SIZES[:2])
def test_question(snap_compare: Compare, catalogue: Catalogue, size: tuple[int, int]) -> None:
    assert snap_compare(Bare(ModelsScreen(catalogue), THEMES[0]), terminal_size=size, run_before=asked)


def test_without_colour(snap_compare: Compare, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(Bare(ModelsScreen(catalogue), THEMES[0]), terminal_size=(80, 24), run_before=settled)
