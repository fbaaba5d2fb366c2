"""Threads that read neurons together.

In: a task, the number of threads. Out: nothing, once all of them have finished. A thread that wakes up late finds
nothing left to do; an interrupted caller stops the others first. Knows nothing of what is read.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from edgeinfer.offload.waiting import Bell

Task = Callable[[int], None]
"""Does a part of the work, given the number of the calling thread: 0 is the caller."""


class _Job:
    """A task that threads are asked to do. `is_over`: threads that have not begun need not begin."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.numbers: Iterator[int] = itertools.count(1)
        self.n_busy, self.is_over = 0, False
        self.failure: BaseException | None = None
        self.done = Bell()

    def join(self) -> None:
        """Wait for the threads that have begun, so that none writes to places that are reused next."""
        self.is_over = True
        while self.n_busy:
            self.done.wait()


class Readers:
    """`count` reading threads, the caller included. Close it to stop the others."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._job: _Job | None = None
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"edgeinfer-neurons-{number}", daemon=True)
            for number in range(1, count)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, task: Task, most: int, stop: Callable[[], None]) -> None:
        """Run a task on at most `most` threads and wait for them; `stop` makes them return early.

        The task returns when nothing is left to do. Raises the first error that it raised on any thread.
        """
        self.settle()
        self._job = job = _Job(task)
        try:
            for _ in range(min(self.count, most) - 1):
                self._jobs.put(job)
            task(0)
            job.join()
        except BaseException:
            stop()
            job.join()
            raise
        if job.failure is not None:
            raise job.failure

    def settle(self) -> None:
        """Wait for threads that are still busy because an earlier `run` was interrupted twice."""
        if self._job is not None:
            self._job.join()

    def close(self) -> None:
        """Stop the threads. Safe to call twice."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads, self._job = [], None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                job.n_busy += 1
            try:
                if not job.is_over:
                    job.task(next(job.numbers))
            except BaseException as reason:  # `run` raises it in the caller
                if job.failure is None:
                    job.failure = reason
            with self._lock:
                job.n_busy -= 1
                job.done.ring()
