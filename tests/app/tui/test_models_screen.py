"""The models screen: lists, forecasts, looks up, pulls, pauses, deletes, and says what went wrong."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from edgeinfer.app.catalogue.catalogue import Catalogue
from edgeinfer.app.tui.screens.models import ChosenModel, ModelsScreen
from edgeinfer.app.tui.screens.questions import ModelQuestion
from edgeinfer.app.tui.widgets.model_list import ModelDetail, ModelTable, PullLines
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.models.download.header import file_header
from edgeinfer.models.known_models import known_models
from edgeinfer.models.look import HeaderLook
from edgeinfer.models.store import STARTER_NAME, ModelStore
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.steps import Progress, no_progress
from tests.app.tui.flows import wait_until
from tests.app.tui.models_app import QUICK, Bare
from tests.file_server import FileServer, Served
from tests.tiny_models import write_hollow_llama, write_model
from tests.unit.scheduling.profiles import machine

SIZES = [(40, 12), (100, 40), (200, 60)]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return write_model(tmp_path / "source.gguf", kib=4096)


def table(app: Bare) -> ModelTable:
    return app.models.query_one(ModelTable)


def rows(app: Bare) -> list[dict[str, str]]:
    """The table as it is shown."""
    found = table(app)
    return [{str(column.value): str(found.get_cell(row, column)) for column in found.columns} for row in found.rows]


def notice(app: Bare) -> str:
    return str(app.models.query_one("#models-notice", Static).render())


async def listed(pilot: Pilot[None], app: Bare) -> None:
    """Wait until everything that is known is shown."""
    await wait_until(pilot, lambda: rows(app) and all(row["tok/s"] != "…" for row in rows(app)))


async def look_up(pilot: Pilot[None], app: Bare, source: str) -> None:
    await pilot.press("slash")
    app.models.query_one(Input).value = source
    await pilot.press("enter")


@pytest.mark.parametrize("size", SIZES)
async def test_models_here_and_the_starter_are_listed(catalogue: Catalogue, tiny: str, size: tuple[int, int]) -> None:
    app = Bare(ModelsScreen(catalogue, current=tiny))
    async with app.run_test(size=size) as pilot:
        await listed(pilot, app)
        here, starter = rows(app)
        assert (here["state"], here["name"], here["fits"]) == ("in use", "tiny", "yes")
        assert starter["state"] == "offer"
        assert ("source" in here) == (size[0] >= 110)
        assert table(app).virtual_size.width <= size[0]
        if size[0] > 40:
            assert starter["name"] == STARTER_NAME


async def test_columns_follow_the_width(catalogue: Catalogue, tiny: str) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(120, 20)) as pilot:
        await listed(pilot, app)
        assert "source" in rows(app)[0]
        await pilot.resize_terminal(50, 20)
        await wait_until(pilot, lambda: set(rows(app)[0]) == {"state", "name", "fits", "tok/s"})


async def test_enter_chooses_and_escape_does_not(catalogue: Catalogue, tiny: str) -> None:
    for key, answer in (("enter", ChosenModel("tiny", 4096)), ("escape", None)):
        app = Bare(ModelsScreen(catalogue, n_context=4096))
        async with app.run_test() as pilot:
            await listed(pilot, app)
            await pilot.press(key)
            await wait_until(pilot, lambda app=app: app.answers)
            assert app.answers == [answer]


async def test_the_context_changes_what_is_predicted(catalogue: Catalogue, tmp_path: Path) -> None:
    ProfileStore().save(replace(machine(), fingerprint=fingerprint_of(read_topology()), measured="now"))
    path = write_hollow_llama(tmp_path / "hollow.gguf")
    catalogue.store.pull(str(path))
    app = Bare(ModelsScreen(catalogue, n_context=4096))
    async with app.run_test(size=(110, 40)) as pilot:
        await listed(pilot, app)
        await pilot.press("i")
        before = str(app.models.query_one("ModelDetail Static", Static).render())
        assert rows(app)[0]["tok/s"].startswith("~")
        await pilot.press("right_square_bracket")
        await wait_until(pilot, lambda: "context of 8192" in str(app.models.query_one("ModelDetail Static").render()))
        assert "context of 4096" in before
        assert "Context 8k (press [ or ] to change); ~ means estimated" in str(
            app.models.query_one("#models-title").render()
        )
        await pilot.press("left_square_bracket", "left_square_bracket", "left_square_bracket")
        await wait_until(pilot, lambda: "context of 2048" in str(app.models.query_one("ModelDetail Static").render()))


async def test_a_source_is_looked_up_pulled_and_used(catalogue: Catalogue, server: FileServer, data: bytes) -> None:
    server.files["/big-Q8_0.gguf"] = Served(data)
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(120, 30)) as pilot:
        await listed(pilot, app)
        await look_up(pilot, app, server.url("/big-Q8_0.gguf"))
        await wait_until(pilot, lambda: any(row["name"] == "big-Q8_0" for row in rows(app)))
        assert server.body_bytes() < len(data)
        assert table(app).chosen is not None
        await pilot.press("enter")
        await wait_until(pilot, lambda: "is here" in notice(app) and rows(app)[0]["state"] == "here")
        assert [row["name"] for row in rows(app)] == ["big-Q8_0", STARTER_NAME]
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.answers)
        assert app.answers[0] is not None
        assert app.answers[0].name == "big-Q8_0"


async def test_what_is_here_is_not_offered_again(catalogue: Catalogue, server: FileServer, data: bytes) -> None:
    server.files["/big.gguf"] = Served(data)
    catalogue.store.pull(server.url("/big.gguf"))
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await pilot.press("down")
        await look_up(pilot, app, server.url("/big.gguf"))
        await wait_until(pilot, lambda: "here already" in notice(app))
        assert [row["name"] for row in rows(app)] == ["big", STARTER_NAME]
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.answers)


async def test_a_pull_is_paused_resumed_and_found_again(
    catalogue: Catalogue, server: FileServer, data: bytes, home: Path
) -> None:
    served = Served(data, stall=threading.Event())
    server.files["/big.gguf"], source = served, server.url("/big.gguf")
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await look_up(pilot, app, source)
        await wait_until(pilot, lambda: any(row["name"] == "big" for row in rows(app)))
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("%" in row["state"] for row in rows(app)))
        assert "p" in str(app.models.query_one(PullLines).render())
        await pilot.press("p")
        await wait_until(pilot, lambda: any(row["state"] == "paused" for row in rows(app)))
        await pilot.press("escape")
    catalogue.close()
    kept = catalogue.store.unfinished()[0].done_bytes
    assert 0 < kept < len(data)
    assert served.stall is not None
    served.stall.set()
    with Catalogue(ModelStore(home / "models", QUICK)) as later:
        again = Bare(ModelsScreen(later))
        async with again.run_test(size=(100, 30)) as pilot:
            await wait_until(pilot, lambda: any(row["state"] == "paused" for row in rows(again)))
            table(again).select(f"offer {source}")
            asked = len(server.log)
            await pilot.press("p")
            await wait_until(pilot, lambda: "is here" in notice(again))
            assert f"bytes={kept}-" in [request.range for request in server.log[asked:]]
    assert (home / "models" / "big.gguf").read_bytes() == data


async def test_a_cancelled_pull_is_gone(catalogue: Catalogue, server: FileServer, data: bytes) -> None:
    server.files["/big.gguf"] = Served(data, stall=threading.Event())
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await look_up(pilot, app, server.url("/big.gguf"))
        await wait_until(pilot, lambda: any(row["name"] == "big" for row in rows(app)))
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("%" in row["state"] for row in rows(app)))
        await pilot.press("x")
        await wait_until(pilot, lambda: rows(app)[-1]["state"] == "offer")
        await wait_until(pilot, lambda: not app.models.query_one(PullLines).display)
    assert list(catalogue.store.root.iterdir()) == []


async def test_what_does_not_fit_is_asked_about(
    catalogue: Catalogue, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeinfer.engine.kv.limits.available_bytes", lambda: 1)
    server.files["/huge.gguf"] = Served(write_model(tmp_path / "huge.gguf", kib=4096))
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        monkeypatch.setattr("edgeinfer.engine.kv.limits.memory_for_model", lambda: 1_000_000)
        await look_up(pilot, app, server.url("/huge.gguf"))
        await wait_until(pilot, lambda: any(row["fits"] == "no" for row in rows(app)))
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelQuestion))
        assert "does not fit" in str(app.screen.query_one(Static).render())
        await pilot.press("n")
        await pilot.pause()
        assert catalogue.pulls.statuses() == ()
        await pilot.press("enter", "y")
        await wait_until(pilot, lambda: "is here" in notice(app))


@pytest.mark.parametrize("confirm", ["y", "escape"])
async def test_deleting_is_confirmed(catalogue: Catalogue, tiny: str, confirm: str) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelQuestion))
        assert "no undo" in str(app.screen.query_one(Static).render())
        await pilot.press(confirm)
        if confirm == "y":
            await wait_until(pilot, lambda: "freed" in notice(app) and len(rows(app)) == 1)
        await pilot.pause()
    assert (catalogue.store.root / "tiny.gguf").exists() == (confirm != "y")


async def test_the_model_in_use_is_not_deleted(catalogue: Catalogue, tiny: str) -> None:
    app = Bare(ModelsScreen(catalogue, current=tiny))
    async with app.run_test() as pilot:
        await listed(pilot, app)
        await pilot.press("delete")
        await wait_until(pilot, lambda: "in use" in notice(app))
        assert app.screen is app.models


async def test_a_model_deleted_meanwhile_is_noticed(catalogue: Catalogue, tiny: str) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test() as pilot:
        await listed(pilot, app)
        (catalogue.store.root / "tiny.gguf").unlink()
        await pilot.press("enter")
        await wait_until(pilot, lambda: "is gone" in notice(app) and len(rows(app)) == 1)
        assert app.answers == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("nonsense", "Don't know where to find 'nonsense'. Try hf:USER/REPO"),
        ("hf:", "hf:user/repo"),
        ("http://127.0.0.1:9/a.gguf", "check the network"),
    ],
)
async def test_trouble_is_told(catalogue: Catalogue, server: FileServer, source: str, expected: str) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await look_up(pilot, app, source)
        await wait_until(pilot, lambda: expected in notice(app))


async def test_a_failed_pull_says_why(catalogue: Catalogue, server: FileServer, data: bytes) -> None:
    server.files["/big.gguf"] = Served(data)
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await look_up(pilot, app, server.url("/big.gguf") + f"#sha256={'0' * 64}")
        await wait_until(pilot, lambda: any(row["name"] == "big" for row in rows(app)))
        await pilot.press("enter")
        await wait_until(pilot, lambda: "wrong checksum" in notice(app))
        assert rows(app)[-1]["state"] == "failed"


async def test_what_is_known_is_shown(catalogue: Catalogue, tiny: str) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        await pilot.press("i")
        detail = app.models.query_one(ModelDetail)
        assert detail.display
        text = str(detail.query_one(Static).render())
        assert "trained for a context of 512" in text
        assert "edgeinfer probe" in text
        await pilot.press("escape")
        assert not detail.display
        assert app.answers == []


async def test_the_machine_can_be_measured(catalogue: Catalogue, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(formats: tuple[str, ...] = (), progress: Progress = no_progress) -> Profile:
        progress("reading", 1, 2)
        found = replace(machine(), fingerprint=fingerprint_of(read_topology()), measured="now")
        ProfileStore().save(found)
        return found

    monkeypatch.setattr(catalogue, "measure_machine", measure)
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        assert rows(app)[0]["tok/s"] == "?"
        await wait_until(pilot, lambda: "m measures" in notice(app))
        await pilot.press("m")
        await wait_until(pilot, lambda: rows(app)[0]["tok/s"].startswith("~"))
        assert "is measured" in notice(app)


async def test_nothing_looks_while_nothing_is_fetched(
    catalogue: Catalogue, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test() as pilot:
        await listed(pilot, app)
        looked: list[bool] = []
        monkeypatch.setattr(PullLines, "look", lambda self: looked.append(True))
        await pilot.pause(1.2)
        assert looked == []


async def test_a_pull_goes_on_while_the_screen_is_left(catalogue: Catalogue, server: FileServer, data: bytes) -> None:
    served = Served(data, stall=threading.Event())
    server.files["/big.gguf"] = served
    first, second = Bare(ModelsScreen(catalogue)), Bare(ModelsScreen(catalogue))
    async with first.run_test(size=(100, 30)) as pilot:
        await listed(pilot, first)
        await look_up(pilot, first, server.url("/big.gguf"))
        await wait_until(pilot, lambda: any(row["name"] == "big" for row in rows(first)))
        await pilot.press("enter")
        await wait_until(pilot, lambda: any("%" in row["state"] for row in rows(first)))
        await pilot.press("escape")
    assert served.stall is not None
    served.stall.set()
    async with second.run_test(size=(100, 30)) as pilot:
        await wait_until(pilot, lambda: any((row["name"], row["state"]) == ("big", "here") for row in rows(second)))


async def test_a_look_at_an_offer_tells_what_it_is(
    catalogue: Catalogue, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(source: str) -> HeaderLook:
        return HeaderLook("SmolLM2-135M-Instruct.Q4_1", source, file_header(tiny_model), 92_000_000)

    monkeypatch.setattr(catalogue.store, "look", look)
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        assert rows(app)[0]["size"] == "?"
        await pilot.press("i")
        await wait_until(pilot, lambda: rows(app)[0]["size"] == "92.0 MB")
        await listed(pilot, app)
        assert (rows(app)[0]["state"], rows(app)[0]["fits"]) == ("offer", "yes")
        await wait_until(pilot, lambda: "512" in str(app.models.query_one("ModelDetail Static").render()))
        await pilot.press("tab")
        assert isinstance(app.models.focused, ModelDetail)


async def test_names_are_no_markup(catalogue: Catalogue, tiny_model: Path) -> None:
    catalogue.store.root.mkdir(parents=True, exist_ok=True)
    shutil.copy(tiny_model, catalogue.store.root / "a[red]b.gguf")
    app = Bare(ModelsScreen(catalogue))
    async with app.run_test(size=(100, 30)) as pilot:
        await listed(pilot, app)
        assert rows(app)[0]["name"] == "a[red]b"


async def test_models_that_suit_this_machine_are_offered(catalogue: Catalogue, tiny: str) -> None:
    app = Bare(ModelsScreen(catalogue, current=tiny))
    async with app.run_test(size=(200, 60)) as pilot:
        await listed(pilot, app)
        await pilot.press("r")
        await wait_until(pilot, lambda: "would suit this machine" in notice(app))
        await listed(pilot, app)
        known = known_models()
        offered = [row for row in rows(app) if row["name"].partition(":")[0] in known]
        assert offered
        assert all((row["state"], row["fits"], row["tok/s"][0]) == ("offer", "yes", "~") for row in offered)
        chosen = table(app).chosen
        assert chosen is not None
        assert chosen.name == max((row["name"] for row in offered), key=lambda name: known[name.partition(":")[0]].rank)
