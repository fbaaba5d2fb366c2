"""Looking up a source on the models screen: where keys go meanwhile, and what somebody without a model is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from edgeinfer.app.catalogue.catalogue import Catalogue, ModelEntry
from edgeinfer.app.tui.screens.models import ModelsScreen
from edgeinfer.app.tui.screens.questions import ModelQuestion
from edgeinfer.app.tui.widgets.model_list import EXAMPLES, ModelHints
from edgeinfer.models.sources import parse_source
from tests.app.tui.flows import wait_until
from tests.app.tui.models_app import Bare
from tests.app.tui.test_models_screen import listed, look_up, notice, rows, table
from tests.file_server import FileServer, Served
from tests.tiny_models import write_model


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return write_model(tmp_path / "source.gguf", kib=64)


async def test_after_a_failed_look_up_the_source_can_be_corrected(
    catalogue: Catalogue, server: FileServer, data: bytes, tiny: None
) -> None:
    server.files["/pim.gguf"] = Served(data)
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(120, 30)) as pilot:
        await listed(pilot, app)
        source = app.models.query_one(Input)
        await look_up(pilot, app, server.url("/pi"))
        await wait_until(pilot, lambda: notice(app) and "looking up" not in notice(app))
        assert app.models.focused is source
        assert source.value == server.url("/pi")
        await pilot.press("end", *"m.gguf")
        assert source.value == server.url("/pim.gguf")
        assert app.screen is app.models
        await pilot.press("enter")
        await wait_until(pilot, lambda: "offers 1 model" in notice(app))
        assert app.models.focused is table(app)


async def test_what_is_typed_while_a_source_is_looked_up_is_no_command(
    catalogue: Catalogue, server: FileServer, data: bytes, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/big.gguf"] = Served(data)
    app, goes_on = Bare(ModelsScreen(catalogue)), threading.Event()
    offers = catalogue.offers

    def slow(source: str) -> tuple[ModelEntry, ...]:
        goes_on.wait(60)
        return offers(source)

    monkeypatch.setattr(catalogue, "offers", slow)
    async with app.run_test(size=(120, 30)) as pilot:
        await listed(pilot, app)
        await look_up(pilot, app, server.url("/big.gguf"))
        source = app.models.query_one(Input)
        await pilot.press("end", *"mpx")
        goes_on.set()
        await wait_until(pilot, lambda: "offers 1 model" in notice(app))
        assert app.models.focused is source
        assert source.value == server.url("/big.gguf") + "mpx"


async def test_somebody_without_a_model_is_told_what_can_be_looked_up(
    catalogue: Catalogue, server: FileServer, data: bytes
) -> None:
    server.files["/big.gguf"] = Served(data)
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: app.models.query_one(ModelHints).display)
        shown = str(app.models.query_one(ModelHints).render())
        for _, example in EXAMPLES:
            assert example in shown
        assert "Enter fetches the marked one" in shown
        catalogue.store.pull(server.url("/big.gguf"))
        await look_up(pilot, app, server.url("/big.gguf"))
        await wait_until(pilot, lambda: "offers" in notice(app) or "here" in notice(app))
    again = Bare(ModelsScreen(catalogue))
    async with again.run_test(size=(100, 30)) as pilot:
        await listed(pilot, again)
        assert not again.models.query_one(ModelHints).display


def test_the_examples_work() -> None:
    kinds = [type(parse_source(example)).__name__ for _, example in EXAMPLES]
    assert kinds == ["HubSource", "HubSource", "PypiSource", "PathSource", "OllamaSource"]


async def test_the_hints_leave_room_for_the_table(catalogue: Catalogue) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(40, 12)) as pilot:
        await wait_until(pilot, lambda: app.models.query_one(ModelHints).display and rows(app))
        assert table(app).size.height >= 2


async def test_a_linked_model_is_taken_off_the_list(catalogue: Catalogue, tiny_model: Path) -> None:
    catalogue.store.pull(str(tiny_model))
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(200, 30)) as pilot:
        await listed(pilot, app)
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelQuestion))
        assert "from the list? The file stays at" in str(app.screen.query_one(Static).render())
        await pilot.press("y")
        await wait_until(pilot, lambda: "removed from the list; the file stays at" in notice(app))
    assert tiny_model.exists()
