"""The plan strip: devices one below the other, a pass of one token from left to right, stages by turns light and dark.

In: a `readings.PlanStrip`. Out: lines. What is read from disk is dotted, where a device waits there is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.app.answer_output import harmless
from edgeinfer.app.counting import counted
from edgeinfer.app.readings.records import PlanStrip, Source, Stored, Stretch
from edgeinfer.app.tui.figures import n_bytes, percent, seconds
from edgeinfer.app.tui.widgets.panel import ALARM, MAIN, MUTED, SECOND, STRONG, Line, Panel, line

EVEN, ODD, FROM_DISK, IDLE = "█", "▓", "░", " "
NAME_WIDTH = 9
SOURCES: dict[Source, str] = {
    "measured": "measured",
    "predicted": "whole measured, stages as the profile predicts",
    "by bytes": "whole measured, stages by their bytes",
    "unknown": "",
}


class PlanStripPanel(Panel[PlanStrip]):
    """The panel of the plan."""

    TITLE = "plan"

    def lines(self, record: PlanStrip, width: int, height: int) -> list[Line]:
        return plan_lines(record, width)


def plan_lines(plan: PlanStrip, width: int) -> list[Line]:
    """The plan in words and strips."""
    if plan.model is None:
        return [line((plan.note, MUTED))]
    took = "" if plan.pass_s is None else f"{seconds(plan.pass_s)} a token, one at a time"
    found = [line((harmless(plan.model)[:width], STRONG)), line(f"{plan.device or ''}{', ' if took else ''}{took}")]
    whole_s = max((stretch.ended_s for stretch in plan.stretches), default=0.0)
    for device in plan.devices:
        mine = [stretch for stretch in plan.stretches if stretch.device == device]
        name = f"{device[:NAME_WIDTH]:<{NAME_WIDTH}}" if len(plan.devices) > 1 else ""
        found.append(line((name, MUTED), *_strip(mine, whole_s, width - len(name))))
    found += _stages(plan)
    if plan.overlap is not None and len(plan.devices) > 1:
        found.append(line(f"another works in {percent(plan.overlap).strip()} of the less busy one's time"))
    whole = sum(took for _, took in plan.kinds)
    if whole:
        found.append(line(", ".join(f"{kind} {percent(took / whole).strip()}" for kind, took in plan.kinds)))
    found += [] if plan.stored is None else stored_lines(plan.stored)
    source = SOURCES[plan.source] if plan.pass_s is not None else "not measured yet" if plan.stretches else ""
    found.append(line(("; ".join(part for part in (source, plan.note) if part), MUTED)))
    return found


def _strip(stretches: Sequence[Stretch], whole_s: float, width: int) -> list[tuple[str, str]]:
    """Cells of a device, neighbours of the same look together."""
    looks = [_look(stretches, (cell + 0.5) * whole_s / width) for cell in range(width)] if whole_s > 0 else []
    runs: list[tuple[str, str]] = []
    for glyph, style in looks:
        if runs and runs[-1][1] == style:
            runs[-1] = runs[-1][0] + glyph, style
        else:
            runs.append((glyph, style))
    return runs


def _look(stretches: Sequence[Stretch], moment_s: float) -> tuple[str, str]:
    for place, stretch in enumerate(stretches):
        if stretch.began_s <= moment_s < stretch.ended_s:
            if stretch.read_share > 0.5:
                return FROM_DISK, ALARM
            return (ODD, SECOND) if place % 2 else (EVEN, MAIN)
    return IDLE, ""


def _stages(plan: PlanStrip) -> list[Line]:
    """What layers take together and one by one, and what everything else takes, where stages are told apart."""
    layers = [stretch.seconds for stretch in plan.stretches if stretch.label.startswith("blk.")]
    if plan.pass_s is None or len(plan.devices) > 1 or not layers or any(" to " in s.label for s in plan.stretches):
        return []
    least, most = seconds(min(layers)), seconds(max(layers))
    each = most if least == most else f"{least} to {most}"
    others = [stretch for stretch in plan.stretches if not stretch.label.startswith("blk.") and stretch.seconds > 0]
    found = [line(f"{counted(len(layers), 'layer')} {seconds(sum(layers))}, each {each}")]
    if others:
        found.append(line(", ".join(f"{stretch.label} {seconds(stretch.seconds)}" for stretch in others)))
    return found


def stored_lines(stored: Stored) -> list[Line]:
    """What stays, what is read, and how fast."""
    rate = "" if stored.disk_bytes_s is None else f" at {stored.disk_bytes_s / 1e9:.2f} GB/s"
    waiting = "" if stored.waiting_share is None else f", {percent(stored.waiting_share).strip()} of the time waiting"
    found = [
        line(f"{stored.n_staying} of {counted(stored.n_stages, 'stage')} stay whole, {n_bytes(stored.stay_bytes, 0)}"),
        line((f"{n_bytes(stored.token_bytes, 0)} read for a token{rate}{waiting}", ALARM)),
    ]
    if stored.window_bytes:
        found.append(line(f"through a window of {n_bytes(stored.window_bytes, 0)}"))
    return found
