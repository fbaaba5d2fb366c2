"""Attention on the host, in its own thread, so that the caller need not wait for it.

In: a layer, the step of the in-flight batches, rows of queries, keys and values. Out: rows of results when they are
ready. Jobs run one at a time in the order they were submitted, so a job never overwrites newer keys and values with
older ones. Sleeps when idle. Knows no schedule.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PATIENCE_S
from edgeinfer.backends.capabilities import HostLane
from edgeinfer.engine.overlap.micro_batches import MicroBatch
from edgeinfer.engine.overlap.parts import HOST, Exchange
from edgeinfer.engine.shared_lane.timeline import DeviceSpan
from edgeinfer.errors import DeviceFailed, EngineClosed
from edgeinfer.graph.step import Floats, Int32s, Step


@dataclass(slots=True)
class AttentionJob:
    """Attention of a layer for a micro-batch. `made`: float32[T, width]; `failure`: why it could not be computed."""

    layer: int
    micro_batch: MicroBatch
    step: Step
    inputs: Mapping[str, Floats]
    made: Floats | None = None
    failure: BaseException | None = None


class HostAttention:
    """Owns the host's lane with the KV cache in the machine's memory, and is its `KVMemory` too."""

    def __init__(self, lane: HostLane, exchanges: Sequence[Exchange]) -> None:
        self._lane, self._exchanges = lane, exchanges
        self._queue: deque[AttentionJob] = deque()
        self._done: deque[AttentionJob] = deque()
        self._spans: list[DeviceSpan] = []
        self._is_busy = self._stopped = False
        self._lock = threading.RLock()  # a signal may break off the exit of a Condition, but not that of a lock
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self.patience_s = PATIENCE_S

    @property
    def resident_bytes(self) -> int:
        return self._lane.resident_bytes

    def use(self, most_workers: int) -> None:
        """Use at most this many workers from the next job on."""
        self._lane.use(most_workers)

    def send(self, job: AttentionJob) -> None:
        """Queue a job behind those before it. Raises EngineClosed."""
        with self._lock:
            if self._stopped:
                raise EngineClosed("the model is closed; load it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="edgeinfer attention", daemon=True)
                self._thread.start()
            self._queue.append(job)
            self._changed.notify_all()

    def take_done(self) -> list[AttentionJob]:
        """Jobs finished since the last call. Raises what a job raised."""
        with self._lock:
            done = list(self._done)
            self._done.clear()
        for job in done:
            if job.failure is not None:
                raise job.failure
        return done

    def wait(self) -> None:
        """Wait for a finished job. Raises DeviceFailed after `patience_s`, or if no job is pending."""
        self._await(lambda: bool(self._done) or not (self._queue or self._is_busy))
        with self._lock:
            if not self._done:
                raise DeviceFailed("attention on the cpu was waited for, and none is under way")

    def settle(self) -> None:
        """Wait for all jobs. Raises DeviceFailed after `patience_s`."""
        self._await(lambda: not (self._queue or self._is_busy))

    def drop(self) -> None:
        """Drop all jobs except the running one, and wait for it."""
        with self._lock:
            self._queue.clear()
        self.settle()
        with self._lock:
            self._done.clear()

    def take_spans(self) -> list[DeviceSpan]:
        """When the host worked since the last call."""
        with self._lock:
            spans, self._spans = self._spans, []
        return spans

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots in all layers, after all jobs."""
        self.settle()
        self._lane.copy_slots(sources, targets)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages after all jobs: uint8[len(pages), page_bytes]."""
        self.settle()
        return self._lane.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Write page contents, after all jobs."""
        self.settle()
        self._lane.write_pages(pages, contents)

    def close(self) -> None:
        """Let the running job end, drop the others and free the memory. Safe to call twice."""
        with self._lock:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._lane.close()

    def _await(self, happened: Callable[[], bool]) -> None:
        with self._lock:
            if not self._changed.wait_for(lambda: self._stopped or happened(), self.patience_s):
                raise DeviceFailed(f"attention on the cpu did not end in {self.patience_s:.0f} s")
            if self._stopped:
                raise EngineClosed("the model is closed; load it again")

    def _work(self) -> None:
        while True:
            with self._lock:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._stopped)
                if self._stopped:
                    return
                job, self._is_busy = self._queue.popleft(), True
            began = time.perf_counter()
            try:
                job.made = self._attended(job)
            except BaseException as failure:  # raised where the job is collected
                job.failure = failure
            with self._lock:
                self._spans.append(DeviceSpan(HOST, f"attention {job.layer}", began, time.perf_counter()))
                self._done.append(job)

    def _attended(self, job: AttentionJob) -> Floats:
        """The results of a job, copied into their own memory."""
        self._lane.begin(job.step)
        for name, values in job.inputs.items():
            self._lane.write(name, 0, values)
        self._lane.run_section(job.layer)
        return self._lane.read(self._exchanges[job.layer].makes).copy()
