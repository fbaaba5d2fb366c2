"""Saving answers while they grow: in a thread of its own, so that neither the screen nor the model waits for the disk.

In: texts, as often as they grow. Out: the newest of them in the store, twice a second at most. What cannot be written
is tried again, and nothing is forgotten meanwhile. The thread sleeps while nothing has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import EdgeInferError

BETWEEN_S = 0.5


class Autosave:
    """Use it with `with`, or close it. `failed` is told once when writing begins to fail, from the thread."""

    def __init__(self, store: SessionStore, failed: Callable[[str], None] | None = None) -> None:
        self._store = store
        self.failed = failed
        self.failure: str | None = None
        """What is wrong, while something is."""
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
        """The answer has this text now."""
        with self._changed:
            is_first = not self._texts
            self._texts[message] = text
            if is_first:  # else the thread knows, and need not wake for each piece
                self._changed.notify()

    def forget(self, message: int) -> None:
        """The answer is over, and somebody else writes its end."""
        with self._writing, self._changed:
            self._texts.pop(message, None)

    def flush(self) -> bool:
        """Write now; whether everything is written."""
        before = self.failure
        with self._writing:
            self.failure = self._write()
        # told with nothing held: whoever is told may wait for a thread that wants to forget an answer
        if self.failure is not None and before is None and self.failed is not None:
            self.failed(self.failure)
        return self.failure is None

    def _write(self) -> str | None:
        """Write what there is; what went wrong."""
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
        """Write what is left and end the thread; may be called twice."""
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
