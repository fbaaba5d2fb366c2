"""Who writes an answer: this process, told apart from others so that one that died can be recognised.

In: the system's processes. Out: a text for a column, and whether the process it names is alive.
"""

from __future__ import annotations

import psutil

SAME_S = 2.0
"""The start of a process is counted from the machine's, which moves when its clock is set right."""


def this_process() -> str:
    """This process: its number and when it started, as numbers are used again."""
    process = psutil.Process()
    return f"{process.pid}@{process.create_time():.2f}"


def is_alive(writer: str | None) -> bool:
    """Whether the process that a text names still runs."""
    if writer is None:
        return False
    number, _, started = writer.partition("@")
    try:
        found: float = psutil.Process(int(number)).create_time()
        return abs(found - float(started)) < SAME_S
    except (psutil.Error, ValueError, OverflowError):
        return False
