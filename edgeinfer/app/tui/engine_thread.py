"""The thread that owns the model: it does one job after another and posts what comes of them.

In: jobs, from the screen's thread. Out: messages to the app, and text into a `TextBuffer`. Nothing here touches a
widget, and nothing waits for the screen. The thread sleeps while there is nothing to do.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from edgeinfer.app.tui.engine import Opening, ReadingsOfModel
from edgeinfer.app.tui.engine_work import EngineWork, Host
from edgeinfer.app.tui.jobs import AnswerJob, CloseJob, Job, OpenModelJob, Summarise
from edgeinfer.app.tui.messages import Grown, Notified
from edgeinfer.app.tui.text_buffer import TextBuffer
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:  # what computes is imported by the thread, when the first screen is drawn
    from edgeinfer.app.snapshots import Snapshots
    from edgeinfer.engine.scheduler.stats import RequestProgress

PATIENCE_S = 10.0


class EngineThread:
    """Start it once, give it jobs from one thread, close it."""

    def __init__(self, host: Host, opening: Opening, snapshots: Snapshots | None = None) -> None:
        self._host = host
        self.text_buffer = TextBuffer(lambda: host.post_message(Grown()))
        self._work = EngineWork(host, self.text_buffer, opening, snapshots)
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._waiting: list[Job] = []
        self._current: Job | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="edgeinfer-engine", daemon=True)

    @property
    def live(self) -> RequestProgress | None:
        """The numbers of the running request; None where there is none."""
        stream = self._work.stream
        return None if stream is None else stream.live

    @property
    def readings(self) -> ReadingsOfModel | None:
        """Readings of the open model, for whoever shows them."""
        return self._work.readings

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def give(self, job: Job) -> None:
        """Do this after what was given before; opening a model takes the place of another one's."""
        if isinstance(job, OpenModelJob):
            self._call_off_opening()
        with self._lock:
            self._waiting.append(job)
        self._jobs.put(job)

    def stop(self) -> None:
        """End the running request within a step, and whatever waits to be answered."""
        for job in self._unfinished():
            if isinstance(job, AnswerJob | Summarise):
                job.stopped.set()
        self._work.stop()

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """Stop everything, put aside what was read, and close the model; whether that was done in time."""
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
            except Exception as error:  # what is wrong is told; the chat goes on
                reason = f"the engine failed: {type(error).__name__}: {error}"
                self._host.post_message(Notified(reason, is_error=True))
            with self._lock:
                self._current = None
            if isinstance(job, CloseJob):
                return
