"""The machine screen's panels of text: cores, memory, drafts, energy; and the base class of all its panels.

In: records of `readings`. Out: lines of the panel's size, redrawn only when they change. Fetches nothing itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from textwrap import wrap
from typing import Generic, TypeVar

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from edgeinfer.app.plain_text import counted
from edgeinfer.app.readings.records import (
    CoreReading,
    Cores,
    DraftCount,
    DraftingReading,
    Energy,
    MemoryReading,
    StoredReading,
)
from edgeinfer.app.tui.figures import bar, n_bytes, percent, seconds

Record = TypeVar("Record")
Line = tuple[tuple[str, str], ...]
"""A line of texts, each with its style ("" for none)."""

MUTED, STRONG, MAIN, SECOND, OTHER, ALARM = "dim", "bold", "$primary", "$secondary", "$accent", "$warning"


def line(*parts: str | tuple[str, str]) -> Line:
    """Build a line from texts with or without a style."""
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


def wrapped(text: str, width: int, style: str = "") -> list[Line]:
    """Wrap a text into lines."""
    return [line((part, style)) for part in wrap(text, max(1, width))]


def plain(lines: Sequence[Line]) -> list[str]:
    """The lines without styles."""
    return ["".join(text for text, _ in each) for each in lines]


class Panel(Static, Generic[Record]):
    """Keeps the record, and redraws it when the size changes."""

    DEFAULT_CSS = """
    Panel {
        height: 1fr; width: 1fr; padding: 0 1; border: round $surface-lighten-2; border-title-color: $text-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    TITLE = ""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", markup=False, id=id, classes=classes)
        self.border_title = self.TITLE
        self._record: Record | None = None
        self._lines: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        """The displayed text, without styles."""
        return "\n".join(plain(self._lines))

    @abstractmethod
    def lines(self, record: Record, width: int, height: int) -> list[Line]:
        """Render a record as lines for this width and height."""

    def show(self, record: Record) -> None:
        """Show a record; redraws only if the lines change."""
        self._record = record
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width, height = self.content_size
        if self._record is None or width < 1 or height < 1:
            return
        lines = tuple(self.lines(self._record, width, height)[:height])
        if lines != self._lines:
            self._lines = lines
            rows = (Content.assemble(*((text, style) if style else text for text, style in each)) for each in lines)
            self.update(Content("\n").join(list(rows)), layout=False)


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


WORDS_WIDTH = 19


class MemoryPanel(Panel[MemoryReading]):
    """The memory panel of the machine screen."""

    TITLE = "memory"

    def lines(self, record: MemoryReading, width: int, height: int) -> list[Line]:
        return memory_lines(record, width)


def memory_lines(memory: MemoryReading, width: int) -> list[Line]:
    """A line for each kind of memory, with the total it is part of."""
    total = memory.total_bytes or None
    taken = None if total is None or memory.available_bytes is None else total - memory.available_bytes
    found = [
        _memory_bar("machine", taken, total, width),
        _memory_bar("process", memory.process_bytes, total, width),
    ]
    if memory.weight_bytes is not None:
        found.append(_memory_bar("weights", memory.weight_bytes, total, width))
    if memory.kv_bytes is not None:
        found.append(_memory_bar("KV cache", memory.kv_used_bytes, memory.kv_bytes, width))
    if memory.n_kv_most:
        found.append(line(f"{'':<{NAME_WIDTH}}{memory.n_kv_tokens or 0:,} of {memory.n_kv_most:,} tokens"))
    if memory.buffer_bytes is not None:
        found.append(line(f"{'buffers':<{NAME_WIDTH}}{n_bytes(memory.buffer_bytes)}"))
    if memory.program_bytes is not None:
        found.append(line(f"{'program':<{NAME_WIDTH}}{n_bytes(memory.program_bytes)}"))
    found.append(line(f"{'available':<{NAME_WIDTH}}{n_bytes(memory.available_bytes)}"))
    return [*found, *([] if memory.stored is None else stored_lines(memory.stored))]


def _memory_bar(name: str, part: int | None, whole: int | None, width: int) -> Line:
    words = f"{n_bytes(part)} / {n_bytes(whole, 0)}".ljust(WORDS_WIDTH)
    room = max(0, width - NAME_WIDTH - len(words) - 1)
    return line(f"{name:<{NAME_WIDTH}}{words} ", (bar((part or 0) / whole if whole else 0.0, room), MAIN))


def stored_lines(stored: StoredReading) -> list[Line]:
    """What stays in memory, what is read from disk, and how fast."""
    rate = "" if stored.disk_bytes_s is None else f", {stored.disk_bytes_s / 1e9:.2f} GB/s"
    found = [
        line(f"{stored.n_staying} of {counted(stored.n_stages, 'stage')} stay whole, {n_bytes(stored.stay_bytes, 0)}"),
        line((f"{n_bytes(stored.token_bytes, 0)} a token from disk{rate}", ALARM)),
    ]
    if stored.waiting_share is not None:
        found.append(line(f"{percent(stored.waiting_share).strip()} of the time waiting for it"))
    if stored.window_bytes:
        found.append(line(f"through a window of {n_bytes(stored.window_bytes, 0)}"))
    return found


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
    last, tail = dict(drafting.last), [*_drafting_time(drafting), *_pass_costs(drafting, width)]
    room = max(1, height - 2 - len(tail))
    rows = [_draft_row(name, last.get(name, DraftCount()), total, width) for name, total in drafting.total[:room]]
    return [line((step, STRONG), " tokens per step in the last answer"), line((head[:width], MUTED)), *rows, *tail]


def _drafting_time(drafting: DraftingReading) -> list[Line]:
    """How long drafting took, if that is known."""
    if drafting.time_share is None:
        return []
    return [line((f"drafting took {100 * drafting.time_share:.1f} % of the last answer", MUTED))]


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
