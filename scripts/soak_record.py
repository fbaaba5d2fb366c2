"""What a soaked server holds over time: rows of a file, and what is wrong with them.

In: rows of numbers by name, as the server tells them every minute. Out: lines of JSON, and faults in words: what
remains at rest, memory that grows, first tokens that come later at the end than at the beginning.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = dict[str, float]
MOST_GROWTH = 0.01
MOST_GROWTH_MB = 10.0
"""What short runs may grow by: caches are full only after minutes."""
LONG_S = 3600.0
POOL = min(32, (os.cpu_count() or 1) + 4)
"""Threads that asyncio starts as it needs them, and keeps."""
MOST_SLOWER = 1.5


def save(out: Path | None, row: Row) -> None:
    """Append a row to the file, if there is one."""
    if out is not None:
        with out.open("a") as file:
            print(json.dumps({name: round(value, 3) for name, value in row.items()}), file=file)


def remaining(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """What is held at rest that was not before, in words."""
    more = [name for name in ("files", "tasks") if after[name] > before[name]]
    more += ["threads"] if after["threads"] > before["threads"] + POOL else []
    busy = [name for name in ("active", "waiting", "busy slots") if after[name]]
    return [f"{name} {after[name]:.0f}, {before[name]:.0f} before" for name in (*more, *busy)]


def growing(series: Sequence[float], seconds: float) -> list[str]:
    """Whether memory in MB grew after the first third, in words: the last third against the one in the middle."""
    n = len(series) // 3
    if not n:
        return []
    middle, last = statistics.mean(series[n : 2 * n]), statistics.mean(series[-n:])
    most = MOST_GROWTH * middle if seconds >= LONG_S else max(MOST_GROWTH_MB, MOST_GROWTH * middle)
    if last <= middle + most:
        return []
    return [f"memory of {last:.1f} MB in the last third, {middle:.1f} in the one before"]


def slower(before_ms: float, after_ms: float) -> list[str]:
    """Whether the first token at rest came later at the end, in words."""
    is_slower = after_ms > MOST_SLOWER * before_ms
    return [f"first token after {after_ms:.0f} ms at the end, {before_ms:.0f} at the beginning"] if is_slower else []
