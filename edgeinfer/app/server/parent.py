"""The parent process of a sidecar server, which ends with it, however that ends.

In: a process id. Out: whether it has ended; some seconds later this process exits, whatever it is doing. Knows no
server.
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
"""Time between two checks."""
LAST_S = 6.0
"""Time for an orderly end; pulling or loading a model would take minutes more."""


class Parent:
    """A process watched by a thread."""

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
        """Whether this process should end."""
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
        """Whether it still runs; its id may have been reused."""
        try:
            return bool(self._process.is_running()) and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
