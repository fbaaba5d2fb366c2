"""Comparing devices while a model rests: after an answer, for the next start.

In: how devices are compared, and how long nothing has been generated. Out: one line that says what was found. An answer
that begins meanwhile ends the comparison at once; it can be made after that answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.engine.racing.choosing import ChosenDevice
from edgeinfer.errors import EdgeInferError
from edgeinfer.steps import Progress, no_progress

SLACK_S = 0.5
"""Two clocks may differ by so much, in seconds."""


class _Disturbed(Exception):
    """A request came, or the model was closed."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a comparison found, in one line; `changes`: another device than the one in use is the fastest."""

    notice: str
    changes: bool


class Comparison:
    """A comparison of devices that a loaded model still owes.

    `choose` compares and remembers the winner; `idle_s`: seconds since something was generated, 0 while anything is.
    """

    def __init__(self, choose: Callable[[Progress], ChosenDevice], idle_s: Callable[[], float], device: str) -> None:
        self._choose, self._idle_s, self._device = choose, idle_s, device
        self.is_due, self.runs = True, False

    def run(self, progress: Progress = no_progress) -> Compared | None:
        """Compare the devices; None where nothing was found or an answer came first, after which it is still due.

        Raises whatever `progress` raises.
        """
        if not self.is_due or self.runs:
            return None
        began, idle_s = time.monotonic(), self._idle_s()

        def watched(what: str, done: int, total: int) -> None:
            if self._idle_s() + SLACK_S < idle_s + time.monotonic() - began:
                raise _Disturbed
            progress(what, done, total)

        self.runs = True
        try:
            chosen = self._choose(watched)
        except _Disturbed:
            return None
        except (EdgeInferError, OSError):  # the model answers all the same
            self.is_due = False
            return None
        finally:
            self.runs = False
        self.is_due = False
        if chosen.notice is None:
            return None
        changes = chosen.device != self._device
        return Compared(chosen.notice + ("; it is used from the next start on" if changes else ""), changes)
