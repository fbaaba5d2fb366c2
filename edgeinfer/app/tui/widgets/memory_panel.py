"""The memory panel: the machine, this process and its parts (weights, KV cache, buffers, program), available memory.

In: a `readings.MemoryReading`. Out: lines.
"""

from __future__ import annotations

from edgeinfer.app.counting import counted
from edgeinfer.app.readings.records import MemoryReading, StoredReading
from edgeinfer.app.tui.figures import bar, n_bytes, percent
from edgeinfer.app.tui.widgets.panel import ALARM, MAIN, Line, Panel, line

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
