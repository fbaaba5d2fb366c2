"""The energy panel: power, battery, temperature, and the limits that the governor derives from them.

In: a `readings.Energy`. Out: lines.
"""

from __future__ import annotations

from edgeinfer.app.readings.records import Energy
from edgeinfer.app.tui.widgets.panel import ALARM, MUTED, Line, Panel, line, wrapped

NAME_WIDTH = 10
NOT_REPORTED = "not reported by this system"


class EnergyPanel(Panel[Energy]):
    """The energy panel of the machine screen."""

    TITLE = "energy"

    def lines(self, record: Energy, width: int, height: int) -> list[Line]:
        return energy_lines(record, width)


def energy_lines(energy: Energy, width: int) -> list[Line]:
    """The known readings, with a note for each unknown one."""
    first, *more = wrapped(energy.policy or "no model is loaded yet", width - NAME_WIDTH)
    found = [line(f"{'governor':<{NAME_WIDTH}}", *first), *(line(" " * NAME_WIDTH, *each) for each in more)]
    if energy.watts is None and energy.joules_per_token is None:
        found.append(line(f"{'power':<{NAME_WIDTH}}", (NOT_REPORTED, MUTED)))
    else:
        watts = "–" if energy.watts is None else f"{energy.watts:.1f} W, all programs together"
        joules = "–" if energy.joules_per_token is None else f"{energy.joules_per_token:.2f} J a token, last answer"
        found += [line(f"{'power':<{NAME_WIDTH}}{watts}"), line(f"{'energy':<{NAME_WIDTH}}{joules}")]
    return [*found, _battery(energy), _temperature(energy)]


def _battery(energy: Energy) -> Line:
    name = f"{'battery':<{NAME_WIDTH}}"
    if energy.plugged_in is None and energy.battery_percent is None:
        return line(name, ("none, or not reported", MUTED))
    charge = "" if energy.battery_percent is None else f"{energy.battery_percent:.0f} %, "
    return line(name, f"{charge}{'plugged in' if energy.plugged_in else 'unplugged'}")


def _temperature(energy: Energy) -> Line:
    name, now, high = f"{'CPU':<{NAME_WIDTH}}", energy.temperature_c, energy.high_c
    if now is None:
        return line(name, (NOT_REPORTED, MUTED))
    limit = "" if high is None else f" of {high:.0f} °C"
    is_hot = high is not None and now >= high - 5
    return line(name, (f"{now:.0f}{limit or ' °C'}", ALARM if is_hot else ""))
