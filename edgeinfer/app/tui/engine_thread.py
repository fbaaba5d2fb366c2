"""The engine thread: owns the model, runs one job after another, and posts the results.

In: jobs from the UI thread. Out: messages to the app, and text in a `TextBuffer`. Touches no widget and never waits for
the UI. The thread sleeps while it has no jobs.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from edgeinfer.app.tui.engine import Opening, ReadingsOfModel
from edgeinfer.app.tui.engine_beside import BesideWork
from edgeinfer.app.tui.engine_messages import (
    AnswerJob,
    CloseJob,
    Grown,
    Job,
    Notified,
    OpenModelJob,
    Summarise,
    TextBuffer,
)
from edgeinfer.app.tui.engine_work import EngineWork, Host
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:  # the thread itself imports the compute code, after the first screen is drawn
    from edgeinfer.app.mcp.chat_tools import ChatTools
    from edgeinfer.app.sessions.snapshots import Snapshots
    from edgeinfer.engine.scheduler.stats import RequestProgress

PATIENCE_S = 10.0


class EngineThread:
    """Start once, give it jobs from a single thread, then close."""

    def __init__(
        self, host: Host, opening: Opening, snapshots: Snapshots | None = None, tools: ChatTools | None = None
    ) -> None:
        self._host = host
        self.text_buffer = TextBuffer(lambda: host.post_message(Grown()))
        self._work = EngineWork(host, self.text_buffer, opening, snapshots, tools)
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._waiting: list[Job] = []
        self._current: Job | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="edgeinfer-engine", daemon=True)

    @property
    def live(self) -> RequestProgress | None:
        """Progress of the running request, or None."""
        stream = self._work.stream
        return None if stream is None else stream.live

    @property
    def beside(self) -> tuple[tuple[int, bool], ...]:
        """Tokens of each of the answers that are being written side by side, and whether it is over; () without any."""
        stream = self._work.stream
        return stream.progress if isinstance(stream, BesideWork) else ()

    @property
    def readings(self) -> ReadingsOfModel | None:
        """Readings of the open model, or None."""
        return self._work.readings

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def give(self, job: Job) -> None:
        """Queue a job. Opening a model cancels any earlier opening."""
        if isinstance(job, OpenModelJob):
            self._call_off_opening()
        with self._lock:
            self._waiting.append(job)
        self._jobs.put(job)

    def stop(self) -> None:
        """Stop the running request within one step, and cancel all queued requests."""
        for job in self._unfinished():
            if isinstance(job, AnswerJob | Summarise):
                job.stopped.set()
        self._work.stop()

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """Stop everything, save the KV cache, close the model. Returns False if this took longer than `patience_s`."""
        for job in self._unfinished():
            job.stopped.set()
        self._work.call_off()
        if self._thread.ident is None:
            return True
        self.give(CloseJob())
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _call_off_opening(self) -> None:
        for job in self._unfinished():
            if isinstance(job, OpenModelJob):
                job.stopped.set()
        self._work.call_off_opening()

    def _unfinished(self) -> list[Job]:
        with self._lock:
            return [job for job in (self._current, *self._waiting) if job is not None]

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            with self._lock:
                self._waiting.remove(job)
                self._current = job
            try:
                self._work.do(job)
            except EdgeInferError as error:
                self._host.post_message(Notified(str(error), is_error=True))
            except Exception as error:  # report the error; the chat continues
                reason = f"the engine failed: {type(error).__name__}: {error}"
                self._host.post_message(Notified(reason, is_error=True))
            with self._lock:
                self._current = None
            if isinstance(job, CloseJob):
                return
