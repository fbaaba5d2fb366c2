"""Aborting a pass: a flag that any thread can set and that native code reads without calling Python.

In: `set`. Out: `is_set`, and the address of a C string that is empty until the flag is set. Independent of what reads
the flag.
"""

from __future__ import annotations

import ctypes
import threading


class Interrupted(Exception):
    """A pass was aborted because its flag was set; none of its results are kept."""


class StopFlag(threading.Event):
    """An event for a single answer; it is never cleared."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """Request a stop, from any thread."""
        self._text[0] = b"\1"
        super().set()

    @property
    def address(self) -> int:
        """Address of a C string: empty until the flag is set, then one character long."""
        return ctypes.addressof(self._text)
