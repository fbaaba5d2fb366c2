"""The machine screen's charts: the plan strip and the roofline.

In: a `readings.PlanStrip`, a `readings.Roofline`. Out: lines. The strip has one row per device, with the time of a
one-token pass from left to right; stages alternate light and dark, those read from disk are dotted, idle time is blank.
The roofline shows multiply-adds per second over multiply-adds per byte, with P for prefill and D for decode, and the
figures as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from edgeinfer.app.plain_text import counted
from edgeinfer.app.readings.records import PlanStrip, Reached, Roofline, Source, Stretch
from edgeinfer.app.tui.figures import longest_that_fits, percent, seconds
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
from edgeinfer.app.tui.widgets.roofline_plot import LETTERS, plot_lines

EVEN, ODD, FROM_DISK, IDLE = "█", "▓", "░", " "
LAYER = "blk."
"""Prefix of layer names; other stages have a separate colour."""
LEAST_CELLS = 3
"""Minimum width of a run of stages drawn alike."""
DEVICE_WIDTH = 9
SOURCES: dict[Source, str] = {
    "measured": "stages measured",
    "predicted": "whole measured, stages as the profile predicts",
    "by bytes": "whole measured, stages by their bytes",
    "unknown": "",
}
LEAST_PLOT = (16, 3)
"""Minimum cells for a plot; below this only text is shown."""


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
        name = f"{device[:DEVICE_WIDTH]:<{DEVICE_WIDTH}}" if len(plan.devices) > 1 else ""
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


class RooflinePanel(Panel[Roofline]):
    """The roofline panel of the machine screen."""

    TITLE = "roofline"

    def lines(self, record: Roofline, width: int, height: int) -> list[Line]:
        return roofline_lines(record, width, height)


def roofline_lines(roofline: Roofline, width: int, height: int) -> list[Line]:
    """The plot, if it fits, and the figures."""
    words = [_reached_words(each, roofline, width) for each in roofline.reached]
    if roofline.bytes_s is not None and roofline.madds_s is not None:
        roof = f"roof {roofline.bytes_s / 1e9:.1f} GB/s, {_giga(roofline.madds_s)} multiply-adds/s"
        words.append(line((roof, MUTED)))
    if roofline.note:
        words += wrapped(roofline.note, width, MUTED)
    room = height - len(words)
    has_plot = (roofline.reached or roofline.bytes_s) and width >= LEAST_PLOT[0] and room >= LEAST_PLOT[1]
    return [*(plot_lines(roofline, width, room) if has_plot else []), *words]


def _reached_words(reached: Reached, roofline: Roofline, width: int) -> Line:
    """The figures of a phase, with its name if it fits."""
    roof = roofline.roof(reached.intensity)
    share = "" if roof is None else f", {percent(reached.madds_s / roof).strip()} of roof"
    of_bytes, of_madds = f"{reached.bytes_s / 1e9:.1f} GB/s", _giga(reached.madds_s)
    name = f" {reached.phase:<7}"
    figures = longest_that_fits(
        width - 1,
        f"{name} {of_bytes}, {of_madds} multiply-adds/s{share}",
        f" {of_bytes}, {of_madds} multiply-adds/s{share}",
        f"{name} {of_bytes}, {of_madds}/s{share}",  # multiply-adds, as in the line about the roof
        f" {of_bytes}, {of_madds}/s{share}",
    )
    return line((LETTERS[reached.phase], f"{STRONG} {OTHER}"), figures)


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.0f} G" if rate >= 1e10 else f"{rate / 1e9:.1f} G"
