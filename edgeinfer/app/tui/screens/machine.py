"""The machine screen: panels that show what the model is doing on this machine.

In: a source of readings (`readings.Readings`, or a test double). Out: panels, side by side if there is room, else one
at a time. While the screen is shown, visible panels refresh once a second; otherwise it does no work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid
from textual.content import Content
from textual.events import Resize, ScreenResume, ScreenSuspend
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from edgeinfer.app.tui.engine import ReadingSource
from edgeinfer.app.tui.widgets.machine_charts import PlanStripPanel, RooflinePanel
from edgeinfer.app.tui.widgets.machine_panels import AcceptanceTable, CoreBars, EnergyPanel, MemoryPanel
from edgeinfer.errors import EdgeInferError

LOOK_S = 1.0
WIDE, HIGH_ENOUGH = 100, 30
"""Minimum columns and rows to show panels side by side."""
TABS = ("plan", "roof", "cores", "memory", "drafts", "energy")
BUSY = "a request is running, or the model is closed; press r when it is done"
UNTIMED = "this device does not report how long its operations take"


@dataclass(frozen=True, slots=True)
class _Panel:
    """A panel and the function that refreshes it."""

    panel: PlanStripPanel | RooflinePanel | CoreBars | MemoryPanel | AcceptanceTable | EnergyPanel
    look: Callable[[], None]


class MachineScreen(Screen[None]):
    """Six panels on one source of readings."""

    DEFAULT_CSS = """
    MachineScreen { layout: vertical; }
    MachineScreen #tabs, MachineScreen #machine-hint { height: 1; width: 1fr; text-wrap: nowrap; }
    MachineScreen #machine-hint { color: $text-muted; }
    MachineScreen #panels { grid-size: 2 3; grid-gutter: 0 1; height: 1fr; }
    MachineScreen.-narrow #panels { grid-size: 1 1; }
    MachineScreen.-narrow Panel { display: none; border: none; padding: 0; }
    MachineScreen.-narrow Panel.-current { display: block; }
    MachineScreen.-wide #tabs { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Back", id="machine.leave"),
        Binding("right,tab,l", "turn(1)", "Next panel", id="machine.next"),
        Binding("left,shift+tab,h", "turn(-1)", "Previous panel", id="machine.previous"),
        Binding("r", "measure", "Measure each op", id="machine.measure"),
    ]

    class Measured(Message):
        """A pass was timed op by op, or could not be."""

        def __init__(self, is_done: bool) -> None:
            super().__init__()
            self.is_done = is_done

    def __init__(self, source: ReadingSource) -> None:
        super().__init__()
        self._source = source
        self._current = 0
        self._timer: Timer | None = None
        self._shown = self._panels(source)

    @staticmethod
    def _panels(source: ReadingSource) -> Mapping[str, _Panel]:
        """Panels by tab."""
        plan, roof, cores = PlanStripPanel(id="plan"), RooflinePanel(id="roof"), CoreBars(id="cores")
        memory, drafts, energy = MemoryPanel(id="memory"), AcceptanceTable(id="drafts"), EnergyPanel(id="energy")
        return {
            "plan": _Panel(plan, lambda: plan.show(source.plan())),
            "roof": _Panel(roof, lambda: roof.show(source.roofline())),
            "cores": _Panel(cores, lambda: cores.show(source.cores())),
            "memory": _Panel(memory, lambda: memory.show(source.memory())),
            "drafts": _Panel(drafts, lambda: drafts.show(source.drafting())),
            "energy": _Panel(energy, lambda: energy.show(source.energy())),
        }

    def compose(self) -> ComposeResult:
        yield Static(id="tabs", markup=False)
        with Grid(id="panels"):
            for tab in TABS:
                yield self._shown[tab].panel
        yield Static(id="machine-hint", markup=False)

    def on_mount(self) -> None:
        self._timer = self.set_interval(LOOK_S, self.look)
        self._arrange()

    def on_screen_resume(self, _event: ScreenResume) -> None:
        if self._timer is not None:
            self._timer.resume()
        self.call_after_refresh(self.look)

    def on_screen_suspend(self, _event: ScreenSuspend) -> None:
        if self._timer is not None:
            self._timer.pause()

    def on_resize(self, _event: Resize) -> None:
        self._arrange()
        self.call_after_refresh(self.look)

    @property
    def is_wide(self) -> bool:
        """Whether panels are shown side by side."""
        width, height = self.app.size
        return width >= WIDE and height >= HIGH_ENOUGH

    def look(self) -> None:
        """Refresh the visible panels."""
        for place, tab in enumerate(TABS):
            if self.is_wide or place == self._current:
                self._shown[tab].look()

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)

    def action_turn(self, step: int) -> None:
        """Show the next or previous panel, if one is shown at a time."""
        if not self.is_wide:
            self._current = (self._current + step) % len(TABS)
            self._arrange()
            self.call_after_refresh(self.look)

    def action_measure(self) -> None:
        """Time a pass op by op, if the device supports it."""
        if self._source.can_time_stages:
            self._measure()
        else:
            self.notify(UNTIMED, markup=False)

    @work(thread=True, exclusive=True, group="machine-measure")
    def _measure(self) -> None:
        try:
            is_done = self._source.time_stages()
        except EdgeInferError:  # the model was closed meanwhile or its device failed; this is reported on the next use
            is_done = False
        self.post_message(self.Measured(is_done))

    def on_machine_screen_measured(self, message: Measured) -> None:
        """Show the measurement, or say why there is none."""
        if message.is_done:
            self.look()
        else:
            self.notify(BUSY, markup=False)

    def _arrange(self) -> None:
        """Lay out the panels side by side, or the current one alone under its tab."""
        is_wide = self.is_wide
        self.set_class(is_wide, "-wide")
        self.set_class(not is_wide, "-narrow")
        for place, tab in enumerate(TABS):
            self._shown[tab].panel.set_class(place == self._current, "-current")
        tabs = [(tab, "reverse" if place == self._current else "dim") for place, tab in enumerate(TABS)]
        gaps = [part for tab in tabs for part in (tab, " ")][:-1]
        self.query_one("#tabs", Static).update(Content.assemble(*gaps), layout=False)
        hint = "esc back  r measures each op" if is_wide else "esc back  ←→ panels  r measures ops"
        self.query_one("#machine-hint", Static).update(Content(hint), layout=False)
