"""The memory panel: the machine, this process and its parts (weights, KV cache, buffers, program), available memory.

In: a `readings.MemoryReading`. Out: lines.
"""

from __future__ import annotations

from edgeinfer.app.readings.records import MemoryReading
from edgeinfer.app.tui.figures import bar, n_bytes
from edgeinfer.app.tui.widgets.panel import MAIN, Line, Panel, line
from edgeinfer.app.tui.widgets.plan_strip import stored_lines

NAME_WIDTH, WORDS_WIDTH = 10, 19


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
        _bar("machine", taken, total, width),
        _bar("process", memory.process_bytes, total, width),
    ]
    if memory.weight_bytes is not None:
        found.append(_bar("weights", memory.weight_bytes, total, width))
    if memory.kv_bytes is not None:
        found.append(_bar("KV cache", memory.kv_used_bytes, memory.kv_bytes, width))
    if memory.n_kv_most:
        found.append(line(f"{'':<{NAME_WIDTH}}{memory.n_kv_tokens or 0:,} of {memory.n_kv_most:,} tokens"))
    if memory.buffer_bytes is not None:
        found.append(line(f"{'buffers':<{NAME_WIDTH}}{n_bytes(memory.buffer_bytes)}"))
    if memory.program_bytes is not None:
        found.append(line(f"{'program':<{NAME_WIDTH}}{n_bytes(memory.program_bytes)}"))
    found.append(line(f"{'available':<{NAME_WIDTH}}{n_bytes(memory.available_bytes)}"))
    return [*found, *([] if memory.stored is None else stored_lines(memory.stored))]


def _bar(name: str, part: int | None, whole: int | None, width: int) -> Line:
    words = f"{n_bytes(part)} / {n_bytes(whole, 0)}".ljust(WORDS_WIDTH)
    room = max(0, width - NAME_WIDTH - len(words) - 1)
    return line(f"{name:<{NAME_WIDTH}}{words} ", (bar((part or 0) / whole if whole else 0.0, room), MAIN))
