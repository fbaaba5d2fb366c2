"""Memory: free memory, container limits, swapping, memory pressure, huge pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.scheduling.machine.topology.linux_files import text_of
from edgeinfer.text_values import size_text

SCARCE_SHARE = 0.15
"""Below this share of free memory there is little room for a model, and other programs' pages are dropped for it."""
SWAPPING_BYTES_S = 1e6
SWAPPED_SHARE = 0.1
"""Above this share of memory in swap, more is swapped out than merely unused pages."""
PRESSURE_PERCENT = 1.0
_SELECTED = re.compile(r"\[(\w+)\]")
_AVERAGE = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)
_TOTAL = re.compile(r"^MemTotal: +(\d{1,15}) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory and swap. What is unknown is 0, "" or None.

    `host_bytes`: memory of the whole machine, of which a container may have less. `pressure_percent`: percent of ten
    seconds in which something waited for memory.
    """

    total_bytes: int = 0
    available_bytes: int = 0
    host_bytes: int = 0
    swap_bytes: int = 0
    swapped_bytes: int = 0
    swapping_bytes_s: float = 0.0
    huge_pages: str = ""
    pressure_percent: float | None = None


def read(machine: ExaminedMachine) -> MemoryUse:
    """Read sizes, and what was swapped while nothing of ours ran."""
    root, swap, window = machine.root, machine.system.swap(), machine.window
    before, after = window.before, window.after
    moved = after.swapped_in_bytes - before.swapped_in_bytes + after.swapped_out_bytes - before.swapped_out_bytes
    whole = _TOTAL.search(text_of(root / "proc/meminfo"))
    selected = _SELECTED.search(text_of(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    pressure = _AVERAGE.search(text_of(root / "proc/pressure/memory"))
    return MemoryUse(
        total_bytes=machine.topology.total_bytes,
        available_bytes=machine.topology.available_bytes,
        host_bytes=int(whole[1]) << 10 if whole else 0,
        swap_bytes=swap.total_bytes,
        swapped_bytes=swap.used_bytes,
        swapping_bytes_s=max(0, moved) / window.seconds if window.seconds > 0 else 0.0,
        huge_pages=selected[1] if selected else "",
        pressure_percent=float(pressure[1]) if pressure else None,
    )


def judge(facts: MemoryUse) -> Sequence[Finding]:
    """Whether there is room, and whether swapping makes memory as slow as a disk."""
    return [*_room(facts), *_swap(facts), *_pressure(facts), *_huge_pages(facts)]


def _room(facts: MemoryUse) -> Iterator[Finding]:
    if not facts.total_bytes:
        return
    message = f"{size_text(facts.available_bytes)} of {size_text(facts.total_bytes)} are available"
    if facts.host_bytes > facts.total_bytes:
        message += f", within the container's limit (the machine has {size_text(facts.host_bytes)})"
    value = round(facts.available_bytes / 1e9, 2)
    if facts.available_bytes < SCARCE_SHARE * facts.total_bytes:
        fix = "close what is large, or raise the container's limit (docker: --memory); a smaller quant needs less"
        yield Finding("memory", "note", message, fix, value, "GB")
    else:
        yield Finding("memory", "ok", message, value=value, unit="GB")


def _swap(facts: MemoryUse) -> Iterator[Finding]:
    if facts.swapping_bytes_s >= SWAPPING_BYTES_S:
        rate = f"{facts.swapping_bytes_s / 1e6:.1f} MB/s go to and from swap"
        message = f"{rate}, {size_text(facts.swapped_bytes)} are swapped out"
        fix = "close what is large, or use a smaller model or context (--ctx): a swapped model is read from disk"
        yield Finding("swap", "slow", message, fix, round(facts.swapping_bytes_s / 1e6, 1), "MB/s")
    elif facts.total_bytes and facts.swapped_bytes > SWAPPED_SHARE * facts.total_bytes:
        message = f"{size_text(facts.swapped_bytes)} are swapped out, quietly now: memory was short"
        fix = "close what is large before a large model is loaded"
        yield Finding("swap", "note", message, fix, round(facts.swapped_bytes / 1e9, 2), "GB")
    elif facts.swap_bytes:
        message = f"{size_text(facts.swapped_bytes)} of {size_text(facts.swap_bytes)} in use, nothing moves"
        yield Finding("swap", "ok", message, value=round(facts.swapped_bytes / 1e9, 2), unit="GB")


def _pressure(facts: MemoryUse) -> Iterator[Finding]:
    if facts.pressure_percent is not None and facts.pressure_percent >= PRESSURE_PERCENT:
        message = f"programs waited for memory {facts.pressure_percent:.0f} % of the last ten seconds"
        fix = "close what is large: pages are dropped and read again"
        yield Finding("memory-pressure", "slow", message, fix, facts.pressure_percent, "%")


def _huge_pages(facts: MemoryUse) -> Iterator[Finding]:
    if facts.huge_pages == "never":
        message = "huge pages are switched off: every 4 KB of weights need a look-up"
        fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding("huge-pages", "slow", message, fix, 4, "KB")
    elif facts.huge_pages:
        yield Finding("huge-pages", "ok", f"weights lie on huge pages (Linux says {facts.huge_pages})")


CHECK = Check(order=40, summary="memory and swap", read=read, judge=judge, unknown=MemoryUse())
