"""Saves answers as they are generated, in a separate thread, so that neither the UI nor the model waits for the disk.

In: the current text of each answer, as often as it grows. Out: the latest text in the store, at most twice a second.
Failed writes are retried and their texts are kept until then. The thread sleeps while nothing changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import EdgeInferError

BETWEEN_S = 0.5


class Autosave:
    """Use as a context manager or call `close`. `failed` is called once, from the thread, when writes start to fail."""

    def __init__(self, store: SessionStore, failed: Callable[[str], None] | None = None) -> None:
        self._store = store
        self.failed = failed
        self.failure: str | None = None
        """The current write error, or None while writes succeed."""
        self._texts: dict[int, str] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="edgeinfer-autosave", daemon=True)
        self._thread.start()

    def __enter__(self) -> Autosave:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def note(self, message: int, text: str) -> None:
        """Record the current text of an answer."""
        with self._changed:
            is_first = not self._texts
            self._texts[message] = text
            if is_first:  # otherwise the thread already has work and need not be woken for every piece
                self._changed.notify()

    def forget(self, message: int) -> None:
        """Drop the pending text of an answer: it is finished, and the caller writes its final state."""
        with self._writing, self._changed:
            self._texts.pop(message, None)

    def flush(self) -> bool:
        """Write all pending texts now. Returns True if everything was written."""
        before = self.failure
        with self._writing:
            self.failure = self._write()
        # called without locks held: the callback may wait for a thread that is about to call `forget`
        if self.failure is not None and before is None and self.failed is not None:
            self.failed(self.failure)
        return self.failure is None

    def _write(self) -> str | None:
        """Write the pending texts. Returns the error message, or None."""
        with self._changed:
            texts = dict(self._texts)
        for message, text in texts.items():
            try:
                self._store.write_text(message, text, "writing")
            except EdgeInferError as error:
                return str(error)
            with self._changed:
                if self._texts.get(message) is text:
                    del self._texts[message]
        return None

    def close(self) -> None:
        """Write what is pending and end the thread. May be called twice."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self.flush()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts or self._closed)
                if self._closed:
                    return
            self.flush()
            with self._changed:
                self._changed.wait_for(lambda: self._closed, BETWEEN_S)
