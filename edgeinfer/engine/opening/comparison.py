"""A comparison of devices that a loaded model still has to make, and its result.

In: a function that compares devices. Out: a line for the user. It is made after an answer, while the model is idle, for
the next start. A new request ends it at once; it can be repeated after that answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.engine.opening.device_choice import ChosenDevice
from edgeinfer.errors import EdgeInferError
from edgeinfer.steps import Progress, no_progress

SLACK_S = 0.5
"""Tolerance between two clocks, in seconds."""


class _Disturbed(Exception):
    """A request arrived, or the model was closed."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison in one line; `changes`: whether another device than the one in use is the fastest."""

    notice: str
    changes: bool


class Comparison:
    """A pending comparison of devices for a loaded model.

    `choose` compares and remembers the winner; `idle_s`: seconds since something was generated, 0 while generating.
    """

    def __init__(self, choose: Callable[[Progress], ChosenDevice], idle_s: Callable[[], float], device: str) -> None:
        self._choose, self._idle_s, self._device = choose, idle_s, device
        self.is_due, self.runs = True, False

    def run(self, progress: Progress = no_progress) -> Compared | None:
        """Compare the devices; None if there was no result, or if a request interrupted it: then it stays pending.

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
        except (EdgeInferError, OSError):  # the model can still answer
            self.is_due = False
            return None
        finally:
            self.runs = False
        self.is_due = False
        if chosen.notice is None:
            return None
        changes = chosen.device != self._device
        return Compared(chosen.notice + ("; it is used from the next start on" if changes else ""), changes)
