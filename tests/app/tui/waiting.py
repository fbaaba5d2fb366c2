"""Waiting in tests of the terminal app for what comes by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.pilot import Pilot

PATIENCE_S = 30.0


async def wait_until(pilot: Pilot[object], happened: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Let the app run until `happened()` is true. Fails, with the reason it was given for, after `patience_s`."""
    ends = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > ends:
            raise AssertionError(f"not within {patience_s} s: {getattr(happened, '__name__', happened)}")
        await pilot.pause(0.01)
    await pilot.pause()
