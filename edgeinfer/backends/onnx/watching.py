"""Ending ONNX Runtime runs that exceed their time limit, without a thread per run.

In: when a run begins and ends. Out: run options, through which a run is ended between two operators. A stall within one
operator cannot be ended: runtimes with drivers, which may stall, are waited for from another thread instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime

from edgeinfer.errors import DeviceFailed

LOOKS = 4
"""How often a run is checked within its time limit."""


class RunWatch:
    """Watches the runs of one session, one at a time. Must be closed."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._options = onnxruntime.RunOptions()
        self._until: float | None = None
        self._has_ended = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def run(self) -> Iterator[onnxruntime.RunOptions]:
        """Wraps one run; yields its options. Raises DeviceFailed if the run was ended."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="onnx watch", daemon=True)
            self._thread.start()
        self._options.terminate, self._has_ended = False, False
        self._until = time.monotonic() + self.patience_s
        try:
            yield self._options
        except DeviceFailed:
            if not self._has_ended:
                raise
            raise DeviceFailed(f"the onnx device did not finish a step in {self.patience_s:.0f} s") from None
        finally:
            self._until = None

    def _look(self) -> None:
        while not self._closed.wait(self.patience_s / LOOKS):
            until = self._until
            if until is not None and time.monotonic() > until:
                self._options.terminate = self._has_ended = True

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
