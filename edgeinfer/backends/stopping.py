"""Breaking off a pass: a flag that any thread sets and that native code reads without asking Python.

In: `set`. Out: `is_set`, and the address of a C string that is empty until then. Knows nobody who heeds it.
"""

from __future__ import annotations

import ctypes
import threading


class Interrupted(Exception):
    """A pass that was broken off because its flag was set; nothing of it is kept."""


class StopFlag(threading.Event):
    """An event for one answer; it is never cleared."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """Ask for a stop, from any thread."""
        self._text[0] = b"\1"
        super().set()

    @property
    def address(self) -> int:
        """Of a C string: of no characters until the flag is set, then of one."""
        return ctypes.addressof(self._text)
