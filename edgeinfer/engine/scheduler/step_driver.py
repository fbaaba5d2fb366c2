"""Which thread runs a scheduler's steps: one that waits for text, or the engine's own thread.

In: sequences whose text is requested. Out: steps, one after another, by one thread at a time. A single stream runs in
its caller's thread, without a hand-over. If several threads wait, one of them steps for all, and the next one takes
over once that one has its text. The engine's thread steps for sequences that no thread can wait for: those of event
loops.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

from edgeinfer.engine.run.pool import FairLock
from edgeinfer.engine.scheduler.output import Waiter
from edgeinfer.engine.scheduler.scheduler import Scheduler
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.errors import EngineClosed

LOOK_S = 0.5
"""Seconds after which a waiting thread checks for itself, whatever happened to the driving thread."""
PAUSE_S = 0.002
"""Seconds to sleep after a step in which no request could take part."""


class StepDriver:
    """Runs steps. Usable from any thread; `close()` ends its own thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._driving = FairLock()
        self._waiters: list[Waiter] = []
        self._demand = threading.Event()
        self._closing = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def pieces(self, sequence: ScheduledSequence) -> Generator[str, None, None]:
        """Yield the text of an answer, generated on demand; closing the generator ends the answer as `stop` does."""
        self.scheduler.enter(sequence)
        try:
            while (piece := self.next_piece(sequence)) is not None:
                yield piece
        finally:
            self.scheduler.abandon(sequence)

    def next_piece(self, sequence: ScheduledSequence) -> str | None:
        """The next piece of an answer, generated if needed; None when it is over. Raises the error that ended it."""
        if not sequence.is_ready():
            self.wait_for(sequence.waiter, sequence.is_ready)
        piece = sequence.output.take()
        if piece is None and sequence.error is not None:
            raise sequence.error
        return piece

    def wait_for(self, waiter: Waiter, is_ready: Callable[[], bool]) -> None:
        """Return once `is_ready`: drive until then, or sleep while another thread drives."""
        if self._drives_until(is_ready):
            if self._waiters:
                self._hand_on()
            return
        try:
            waiter.is_awaited = True
            self._waiters.append(waiter)
            while not is_ready():
                if not self._drives_until(is_ready):
                    waiter.wait(LOOK_S)
        finally:
            waiter.is_awaited = False
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._hand_on()

    def _drives_until(self, is_ready: Callable[[], bool]) -> bool:
        """Drive until `is_ready`; returns False at once if another thread drives."""
        if not self._driving.acquire(blocking=False):
            return False
        try:
            self._step_until(is_ready)
        finally:
            self._driving.release()
        return True

    def drive(self, sequence: ScheduledSequence, notify: Callable[[], None]) -> None:
        """Let the engine's thread generate an answer; it calls `notify` when there is text. Raises EngineClosed."""
        sequence.notify = notify
        with self._starting:
            if self._closing:
                raise EngineClosed("the model is closed; load it again")
            sequence.is_driven = True
            self.scheduler.enter(sequence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="edgeinfer engine", daemon=True)
                self._thread.start()
        self._demand.set()

    def close(self) -> None:
        """End the thread and all answers, and wake all waiting threads."""
        with self._starting:
            self._closing = True
        self.scheduler.close()
        self._demand.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _step_until(self, is_ready: Callable[[], bool]) -> None:
        scheduler = self.scheduler
        while not is_ready():
            if not scheduler.step() and not is_ready():
                time.sleep(PAUSE_S)

    def _hand_on(self) -> None:
        """Let another waiting thread drive."""
        for waiter in tuple(self._waiters):
            waiter.wake()
            return

    def _run(self) -> None:
        while not self._closing:
            self._demand.wait()
            self._demand.clear()
            while self.scheduler.has_driven and not self._closing:
                with self._driving:
                    try:
                        self._step_until(lambda: self._closing or not self.scheduler.has_driven)
                    except Exception as reason:  # whatever it is, no thread may wait forever
                        self.scheduler.fail_all(reason)
            self._hand_on()
