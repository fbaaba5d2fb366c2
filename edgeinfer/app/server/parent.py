"""Watches the parent process of a sidecar server, so that the server ends with it, however the parent ends.

In: a process id. Out: whether that process has ended; LAST_S seconds later this process exits, whatever it is doing.
Does not depend on the server.
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
"""Seconds between two checks."""
LAST_S = 6.0
"""Seconds allowed for an orderly shutdown; downloading or loading a model would take minutes more."""


class Parent:
    """Watches a process from a thread."""

    def __init__(self, number: int) -> None:
        """Raises BadSetting if there is no such process."""
        try:
            self._process = psutil.Process(number)
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            raise BadSetting(f"--parent-pid {number}: there is no such process") from None
        self._has_ended = threading.Event()
        threading.Thread(target=self._watch, name="parent", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether the watched process has ended, so that this one should too."""
        return self._has_ended.is_set()

    def _watch(self) -> None:
        while self._is_alive():
            time.sleep(LOOK_S)
        self._has_ended.set()
        with suppress(OSError):  # the parent may have been the reader of standard error
            typer.echo("the program that this server belongs to has ended", err=True)
        time.sleep(LAST_S)
        os._exit(1)

    def _is_alive(self) -> bool:
        """Whether the process is still running; its id may have been reused."""
        try:
            return bool(self._process.is_running()) and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
