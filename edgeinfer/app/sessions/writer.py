"""Who writes an answer: this process, told apart from others so that one that died can be recognised.

In: the system's processes. Out: a text for a column, and whether the process it names is alive.
"""

from __future__ import annotations

import os

import psutil


def this_process() -> str:
    """This process: its number and when it started, as numbers are used again."""
    return _text(psutil.Process())


def is_alive(writer: str | None) -> bool:
    """Whether the process that a text names still runs."""
    if writer is None:
        return False
    number, _, _ = writer.partition("@")
    if not number.isdecimal():
        return False
    if int(number) == os.getpid():
        return writer == this_process()
    try:
        return _text(psutil.Process(int(number))) == writer
    except psutil.Error:
        return False


def _text(process: psutil.Process) -> str:
    return f"{process.pid}@{process.create_time():.2f}"
