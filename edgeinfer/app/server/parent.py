"""The program that a server belongs to: watched from the beginning, so that the server ends with it, however that ends.

In: the number of a process. Out: whether it has ended; some seconds later this process ends too, whatever it is at.
Knows no server.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

import psutil
import typer

from edgeinfer.errors import BadSetting

LOOK_S = 0.5
"""How often it is looked for the parent."""
LAST_S = 6.0
"""For an orderly end; pulling or loading a model may take minutes more, and nobody waits for it."""


class Parent:
    """A process that is watched in a thread of its own."""

    def __init__(self, number: int) -> None:
        """Raises BadSetting where there is no such process."""
        try:
            self._process = psutil.Process(number)
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            raise BadSetting(f"--parent-pid {number}: there is no such process") from None
        self._has_ended = threading.Event()
        threading.Thread(target=self._watch, name="parent", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether this process is to end."""
        return self._has_ended.is_set()

    def _watch(self) -> None:
        while self._is_alive():
            time.sleep(LOOK_S)
        self._has_ended.set()
        with suppress(OSError):  # it may have been the reader of standard error
            typer.echo("the program that this server belongs to has ended", err=True)
        time.sleep(LAST_S)
        os._exit(1)

    def _is_alive(self) -> bool:
        """Whether it still runs; its number may have become another's."""
        try:
            return bool(self._process.is_running()) and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
