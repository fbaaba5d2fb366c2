"""The machine screen: panels by room, one at a time by keys, looking only while it is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Static

import edgeinfer
from edgeinfer.app.readings import Readings
from edgeinfer.app.readings.records import Cores, DraftingReading, Energy, MemoryReading, PlanStrip, Roofline
from edgeinfer.app.tui.engine import ReadingSource
from edgeinfer.app.tui.screens import machine
from edgeinfer.app.tui.screens.machine import TABS, MachineScreen
from edgeinfer.app.tui.widgets.machine_charts import PlanStripPanel
from edgeinfer.app.tui.widgets.machine_panels import CoreBars, EnergyPanel, Panel
from edgeinfer.errors import EngineClosed
from tests.app.tui.flows import wait_until
from tests.app.tui.machine_source import Told, one_device

SMALL, LARGE = (40, 12), (100, 36)


class Around(App[None]):
    """An app with nothing but the screen, and another one below it."""

    def __init__(self, source: ReadingSource) -> None:
        super().__init__()
        self.source = source

    def on_mount(self) -> None:
        self.push_screen(MachineScreen(self.source))


def shown(pilot: Pilot[None]) -> list[str]:
    """Panels that can be seen."""
    return [str(panel.id) for panel in pilot.app.screen.query(Panel) if panel.display]


def text_of(pilot: Pilot[None], tab: str) -> str:
    found: Panel[object] = pilot.app.screen.query_one(f"#{tab}", Panel)
    return found.text


def drawn(pilot: Pilot[None], tab: str) -> bool:
    """Whether a panel has something to read."""
    return bool(text_of(pilot, tab))


async def test_where_there_is_room_all_panels_stand_side_by_side() -> None:
    async with Around(Told()).run_test(size=LARGE) as pilot:
        await wait_until(pilot, lambda: all(drawn(pilot, tab) for tab in TABS))
        assert shown(pilot) == list(TABS)
        assert "30 layers 3 ms" in text_of(pilot, "plan")
        assert not pilot.app.screen.query_one("#tabs").display


async def test_in_a_small_terminal_keys_go_from_panel_to_panel() -> None:
    source = Told()
    async with Around(source).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: drawn(pilot, "plan"))
        for tab in (*TABS[1:], TABS[0]):
            await pilot.press("right")
            await wait_until(pilot, lambda tab=tab: drawn(pilot, tab))
            assert shown(pilot) == [tab]
        await pilot.press("left")
        await wait_until(pilot, lambda: shown(pilot) == ["energy"])
        tabs = pilot.app.screen.query_one("#tabs", Static)
        assert str(tabs.render()) == "plan roof cores memory drafts energy"
        for panel in pilot.app.screen.query(Panel):
            assert panel.size.width <= 40


async def test_only_what_is_shown_is_asked_for() -> None:
    source = Told()
    async with Around(source).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: source.asked["plan"])
        assert set(source.asked) == {"plan"}


async def test_it_looks_again_by_itself_and_draws_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LOOK_S", 0.02)
    source = Told()
    async with Around(source).run_test(size=LARGE) as pilot:
        await wait_until(pilot, lambda: source.asked["plan"] > 3)
        panel = pilot.app.screen.query_one(PlanStripPanel)
        updates: list[object] = []
        update = panel.update
        monkeypatch.setattr(panel, "update", lambda *args, **kw: (updates.append(args), update(*args, **kw)))
        asked = source.asked["plan"]
        await wait_until(pilot, lambda: source.asked["plan"] > asked + 3)
        assert not updates, "nothing was new"
        source.plans = replace(one_device(), pass_s=5e-3)
        await wait_until(pilot, lambda: "5 ms a token" in panel.text)
        assert len(updates) == 1


async def test_it_does_not_look_while_another_screen_covers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LOOK_S", 0.02)
    source = Told()
    async with Around(source).run_test(size=LARGE) as pilot:
        await wait_until(pilot, lambda: source.asked["cores"] > 1)
        await pilot.app.push_screen(Screen[None]())
        await pilot.pause()
        asked = source.asked["cores"]
        await pilot.pause(0.2)
        assert source.asked["cores"] <= asked + 1  # a look may have been under way
        pilot.app.pop_screen()
        await wait_until(pilot, lambda: source.asked["cores"] > asked + 2)


async def test_escape_leaves() -> None:
    async with Around(Told()).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, MachineScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, MachineScreen))


async def test_r_measures_and_the_result_is_there() -> None:
    source = Told(plans=PlanStrip("m", "cpu", note="r measures each op"))
    async with Around(source).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: "r measures each op" in text_of(pilot, "plan"))
        source.plans = one_device()
        await pilot.press("r")
        await wait_until(pilot, lambda: "stages measured" in text_of(pilot, "plan").splitlines())
        assert source.asked["time_stages"] == 1


@pytest.mark.parametrize(
    ("source", "notice"), [(Told(is_free=False), machine.BUSY), (Told(can_time_stages=False), machine.UNTIMED)]
)
async def test_r_says_why_nothing_can_be_measured(source: Told, notice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    async with Around(source).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, MachineScreen))
        monkeypatch.setattr(pilot.app.screen, "notify", lambda message, **_: said.append(message))
        await pilot.press("r")
        await wait_until(pilot, lambda: said)
    assert said == [notice]


async def test_a_model_that_is_closed_while_it_is_measured_is_no_crash() -> None:
    class Closing(Told):
        def time_stages(self) -> bool:
            raise EngineClosed("the model is closed; load it again")

    async with Around(Closing()).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: drawn(pilot, "plan"))
        await pilot.press("r")
        await wait_until(pilot, lambda: pilot.app._notifications)
        assert [each.message for each in pilot.app._notifications] == [machine.BUSY]


async def test_a_terminal_that_grows_has_all_panels() -> None:
    async with Around(Told()).run_test(size=SMALL) as pilot:
        await wait_until(pilot, lambda: drawn(pilot, "plan"))
        await pilot.resize_terminal(*LARGE)
        await wait_until(pilot, lambda: all(drawn(pilot, tab) for tab in TABS))
        assert shown(pilot) == list(TABS)
        await pilot.resize_terminal(*SMALL)
        await wait_until(pilot, lambda: shown(pilot) == ["plan"])


async def test_it_works_while_no_model_is_loaded() -> None:
    nothing = Told(
        PlanStrip(note="no model is loaded yet"),
        Roofline(note="no model is loaded yet"),
        Cores(),
        MemoryReading(),
        DraftingReading(),
        Energy(),
        can_time_stages=False,
    )
    async with Around(nothing).run_test(size=LARGE) as pilot:
        await wait_until(pilot, lambda: all(drawn(pilot, tab) for tab in TABS))
        assert text_of(pilot, "plan") == "no model is loaded yet"
        assert "0 cores" in pilot.app.screen.query_one(CoreBars).text
        assert "no model is loaded yet" in pilot.app.screen.query_one(EnergyPanel).text


@pytest.mark.model
async def test_a_running_model_is_seen_in_every_panel(starter_model: Path) -> None:
    with edgeinfer.load(starter_model, device="cpu", n_context=1024) as llm:
        readings = Readings(llm)
        stream = llm.chat([{"role": "user", "content": "Name three colours."}], max_tokens=48, temperature=0)
        stream.read()
        assert stream.stats is not None
        readings.answered(stream.stats)
        async with Around(readings).run_test(size=LARGE) as pilot:
            await wait_until(pilot, lambda: all(drawn(pilot, tab) for tab in TABS))
            await pilot.press("r")
            await wait_until(pilot, lambda: "stages measured" in text_of(pilot, "plan"))
            assert "30 layers" in text_of(pilot, "plan")
            assert "D decode" in text_of(pilot, "roof")
            assert ", last step " in text_of(pilot, "cores")
            assert "KV cache" in text_of(pilot, "memory")
            assert "tokens per step in the last answer" in text_of(pilot, "drafts")
            assert "balanced" in text_of(pilot, "energy")
