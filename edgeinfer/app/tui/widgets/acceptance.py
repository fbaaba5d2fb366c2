"""The drafting panel: proposed and accepted tokens by drafter, and the cost of larger passes.

In: a `readings.DraftingReading`. Out: lines.
"""

from __future__ import annotations

from edgeinfer.app.counting import counted
from edgeinfer.app.readings.records import DraftCount, DraftingReading
from edgeinfer.app.tui.figures import bar, percent, seconds
from edgeinfer.app.tui.widgets.panel import MAIN, MUTED, STRONG, Line, Panel, line

DRAFTER_WIDTH, COUNT_WIDTH = 11, 14
BAR_FROM = 60
"""Minimum width in cells to show bars."""


class AcceptanceTable(Panel[DraftingReading]):
    """The drafting panel of the machine screen."""

    TITLE = "drafts"

    def lines(self, record: DraftingReading, width: int, height: int) -> list[Line]:
        return draft_lines(record, width, height)


def draft_lines(drafting: DraftingReading, width: int, height: int) -> list[Line]:
    """Accepted and proposed tokens by drafter, with the cost of passes below."""
    if not drafting.is_on:
        return [line(("nothing is drafted with this model", MUTED))]
    if not drafting.total:
        return [line(("nothing was drafted yet", MUTED)), *_pass_costs(drafting, width)]
    step = "–" if drafting.accepted_per_step is None else f"{drafting.accepted_per_step:.2f}"
    head = f"{'drafter':<{DRAFTER_WIDTH}}{'last answer':>{COUNT_WIDTH}}{'since loaded':>{COUNT_WIDTH}}"
    last, tail = dict(drafting.last), _pass_costs(drafting, width)
    room = max(1, height - 2 - len(tail))
    rows = [_draft_row(name, last.get(name, DraftCount()), total, width) for name, total in drafting.total[:room]]
    return [line((step, STRONG), " tokens per step in the last answer"), line((head[:width], MUTED)), *rows, *tail]


def _draft_row(name: str, last: DraftCount, total: DraftCount, width: int) -> Line:
    counts = f"{_draft_count(last):>{COUNT_WIDTH}}{_draft_count(total):>{COUNT_WIDTH}}"
    drawn = f" {bar(total.share or 0.0, 10)} {percent(total.share)}" if width >= BAR_FROM else ""
    return line((f"{name[: DRAFTER_WIDTH - 1]:<{DRAFTER_WIDTH}}", MAIN), counts, drawn)


def _draft_count(drafted: DraftCount) -> str:
    return f"{drafted.accepted} of {drafted.proposed}" if drafted.proposed else "–"


def _pass_costs(drafting: DraftingReading, width: int) -> list[Line]:
    """The cost of passes over several tokens, for as many sizes as fit."""
    if not drafting.costs:
        return []
    text = ""
    for size, cost in drafting.costs:
        more = f", {size} ×{cost:.2f}" if text else f"{counted(size, 'token')} ×{cost:.2f}"
        if size == 1:
            continue
        if len(text) + len(more) > width:
            break
        text += more
    single = "" if drafting.single_s is None else f"a pass of 1 token takes {seconds(drafting.single_s)}"
    return [line((part, MUTED)) for part in (single, text) if part]
