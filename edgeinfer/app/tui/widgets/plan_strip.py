"""The plan panel: one row per device, time of a one-token pass from left to right, stages alternating light and dark.

In: a `readings.PlanStrip`. Out: lines. Stages read from disk are dotted; idle time of a device is blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from edgeinfer.app.counting import counted
from edgeinfer.app.readings.records import PlanStrip, Source, Stretch
from edgeinfer.app.tui.figures import percent, seconds
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.machine_panels import (
    ALARM,
    MAIN,
    MUTED,
    OTHER,
    SECOND,
    STRONG,
    Line,
    Panel,
    line,
    stored_lines,
    wrapped,
)

EVEN, ODD, FROM_DISK, IDLE = "█", "▓", "░", " "
LAYER = "blk."
"""Prefix of layer names; other stages have a separate colour."""
LEAST_CELLS = 3
"""Minimum width of a run of stages drawn alike."""
NAME_WIDTH = 9
SOURCES: dict[Source, str] = {
    "measured": "stages measured",
    "predicted": "whole measured, stages as the profile predicts",
    "by bytes": "whole measured, stages by their bytes",
    "unknown": "",
}


class PlanStripPanel(Panel[PlanStrip]):
    """The plan panel of the machine screen."""

    TITLE = "plan"

    def lines(self, record: PlanStrip, width: int, height: int) -> list[Line]:
        return plan_lines(record, width)


def plan_lines(plan: PlanStrip, width: int) -> list[Line]:
    """The plan as text and strips."""
    if plan.model is None:
        return wrapped(plan.note, width, MUTED)
    of_what = "a token, one at a time" if plan.overlap is None else "in the last pass"
    took = "" if plan.pass_s is None else f"{seconds(plan.pass_s)} {of_what}"
    found = [line((neutral(plan.model)[:width], STRONG)), line(f"{plan.device or ''}{', ' if took else ''}{took}")]
    whole_s = max((stretch.ended_s for stretch in plan.stretches), default=0.0)
    for device in plan.devices:
        mine = [stretch for stretch in plan.stretches if stretch.device == device]
        name = f"{device[:NAME_WIDTH]:<{NAME_WIDTH}}" if len(plan.devices) > 1 else ""
        found.append(line((name, MUTED), *_strip(mine, whole_s, width - len(name))))
    found += _stages(plan) if len(plan.devices) == 1 else _devices(plan)
    if plan.overlap is not None and len(plan.devices) > 1:
        found.append(line(f"both work in {percent(plan.overlap).strip()} of the lesser's time"))
    whole = sum(took for _, took in plan.kinds)
    if whole:
        found.append(line(", ".join(f"{kind} {percent(took / whole).strip()}" for kind, took in plan.kinds)))
    found += [] if plan.stored is None else stored_lines(plan.stored)
    source = SOURCES[plan.source] if plan.pass_s is not None else "not measured yet" if plan.stretches else ""
    return found + wrapped("; ".join(part for part in (source, plan.note) if part), width, MUTED)


def _strip(stretches: Sequence[Stretch], whole_s: float, width: int) -> list[tuple[str, str]]:
    """The cells of a device, with neighbours of equal appearance merged."""
    together = max(1, ceil(LEAST_CELLS * len(stretches) / max(1, width)))
    looks = [_look(stretches, (cell + 0.5) * whole_s / width, together) for cell in range(width)] if whole_s > 0 else []
    runs: list[tuple[str, str]] = []
    for glyph, style in looks:
        if runs and runs[-1][1] == style and runs[-1][0][0] == glyph:
            runs[-1] = runs[-1][0] + glyph, style
        else:
            runs.append((glyph, style))
    return runs


def _look(stretches: Sequence[Stretch], moment_s: float, together: int) -> tuple[str, str]:
    """Appearance of the cell at a moment; runs of `together` stages look alike, so that narrow ones do not flicker."""
    for place, stretch in enumerate(stretches):
        if stretch.began_s <= moment_s < stretch.ended_s:
            is_odd = place // together % 2
            if stretch.read_share > 0.5:
                return FROM_DISK, ALARM
            if not stretch.label.startswith(LAYER):
                return EVEN, OTHER
            return (ODD, SECOND) if is_odd else (EVEN, MAIN)
    return IDLE, ""


def _stages(plan: PlanStrip) -> list[Line]:
    """Time of all layers and of each, and of everything else, if stages are timed separately."""
    layers = [stretch.seconds for stretch in plan.stretches if stretch.label.startswith(LAYER)]
    if plan.pass_s is None or not layers or any(" to " in s.label for s in plan.stretches):
        return []
    least, most = seconds(min(layers)), seconds(max(layers))
    each = most if least == most else f"{least} to {most}"
    others = [stretch for stretch in plan.stretches if not stretch.label.startswith(LAYER) and stretch.seconds > 0]
    found = [line(f"{counted(len(layers), 'layer')} {seconds(sum(layers))}, each {each}")]
    if others:
        found.append(line(", ".join(f"{stretch.label} {seconds(stretch.seconds)}" for stretch in others)))
    return found


def _devices(plan: PlanStrip) -> list[Line]:
    """For several devices: the time of each, and its first and last stage."""
    found = []
    for device in plan.devices:
        mine = [stretch for stretch in plan.stretches if stretch.device == device]
        ends = (mine[0].label.split(" to ")[0], mine[-1].label.split(" to ")[-1])
        stages = ends[0] if ends[0] == ends[1] else " to ".join(ends)
        found.append(line(f"{device} {seconds(sum(stretch.seconds for stretch in mine))}, {stages}"))
    return found
