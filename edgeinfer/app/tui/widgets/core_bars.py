"""The cores panel: each core's share of the last step, its speed in that step, and its load.

In: a `readings.Cores`. Out: a line for each core, as many as fit.
"""

from __future__ import annotations

from edgeinfer.app.counting import counted
from edgeinfer.app.readings.records import CoreReading, Cores
from edgeinfer.app.tui.figures import bar, percent, seconds
from edgeinfer.app.tui.widgets.panel import MAIN, MUTED, Line, Panel, line, wrapped

KINDS = {"performance": "P", "efficiency": "E", "low-power": "L"}
FIGURES_FROM = 56
"""Minimum width in cells to show every figure."""


class CoreBars(Panel[Cores]):
    """The cores panel of the machine screen."""

    TITLE = "cores"

    def lines(self, record: Cores, width: int, height: int) -> list[Line]:
        return core_lines(record, width, height)


def core_lines(cores: Cores, width: int, height: int) -> list[Line]:
    """A summary of all workers, then a line for each core."""
    found = wrapped(_core_summary(cores), width, MUTED)
    if cores.note:
        found += wrapped(cores.note, width, MUTED)
    room = max(1, height - len(found))
    shown = cores.cores if len(cores.cores) <= room else cores.cores[: room - 1]
    largest = max((core.share or 0.0 for core in cores.cores), default=0.0)
    found += [_core_line(core, largest, width) for core in shown]
    if len(shown) < len(cores.cores):
        found.append(line((f"and {len(cores.cores) - len(shown)} more", MUTED)))
    return found


def _core_summary(cores: Cores) -> str:
    if cores.n_workers is None:
        return f"{counted(len(cores.cores), 'core')}, no model is loaded yet"
    if cores.n_working is None:
        return f"{counted(cores.n_workers, 'worker')}, no step times"
    return f"{cores.n_working} of {counted(cores.n_workers, 'worker')}, last step {seconds(cores.step_s)}"


def _core_line(core: CoreReading, largest: float, width: int) -> Line:
    """A core's bar, relative to the largest share, and its figures."""
    name = f"{'w' if core.is_worker else ''}{core.number}".rjust(3) + f" {KINDS.get(core.kind, ' ')} "
    busy = "" if core.busy is None else f" busy {percent(core.busy)}"
    speed = " " * 6 if core.speed is None else f" ×{core.speed:.2f}"
    clock = "" if core.hz is None or width < FIGURES_FROM else f" {core.hz / 1e9:.1f} GHz"
    after = f" {percent(core.share)}{speed}{busy}{clock}"
    room = max(4, width - len(name) - len(after))
    return line((name, MUTED), (bar((core.share or 0.0) / largest if largest else 0.0, room), MAIN), after)
