"""Timing passes of a whole synthetic model on a device as in normal use: through the executor, chunk by chunk.

In: an open device, a shape, a quant format. Out: seconds of passes with the tokens cached before each. Small passes
continue where the last one ended; a prompt is read into an empty cache. Does not split times into parts.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

import numpy as np

from edgeinfer.backends.base import Device
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.separation import TimedPass
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.shared_lane.timeline import StepTimeline
from edgeinfer.graph.step import Batch
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import work_of

SEED = 1
"""Seed of the weights: runtimes that store equal matrices only once would read zeros from their caches."""


class WholePasses:
    """A synthetic model on a device. Close it; the caller owns the device."""

    def __init__(self, device: Device, shape: ModelShape, form: str) -> None:
        """Raises what the device raises when it compiles."""
        self._open = ExitStack()
        try:
            model = self._open.enter_context(synthetic_model(shape, form, SEED))
            limits = limits_for(shape.n_context)
            lane = device.compile(model.spec, model.file, limits)
            executor = Executor(device, lane, limits, "synthetic", is_guest=True)
            self._executor = self._open.enter_context(executor)
            self.work = work_of(model.spec, model.file.tensors)
        except BaseException:
            self._open.close()
            raise
        self._sequence = self._executor.create()

    def close(self) -> None:
        """Free the model's memory."""
        self._open.close()

    @property
    def timeline(self) -> StepTimeline:
        """When each device worked in the last pass. Raises ValueError for a single device."""
        shared = self._executor.shared
        if shared is None:
            raise ValueError("one device has no timeline")
        return shared.timeline

    def on(self, n_tokens: int) -> TimedPass:
        """A pass after the cached tokens."""
        n_cached = self._executor.n_cached(self._sequence)
        began = time.perf_counter()
        most, start = self._executor.limits.max_tokens, 0
        while start < n_tokens:
            stop = min(n_tokens, start + most)
            self._evaluate(stop - start, is_last=stop == n_tokens)
            start = stop
        return TimedPass(self.work, Pass(n_tokens, n_cached), time.perf_counter() - began)

    def prompt(self, n_tokens: int) -> TimedPass:
        """A new prompt. If it has more tokens than a pass, they count as one pass where the device joins them."""
        self._executor.truncate(self._sequence, 0)
        return self.on(n_tokens)

    def _evaluate(self, n_tokens: int, *, is_last: bool) -> None:
        order = np.arange(n_tokens, dtype=np.int32)
        positions = order + np.int32(self._executor.n_cached(self._sequence))
        sequences = np.full(n_tokens, self._sequence, np.int32)
        outputs = order[-1:] if is_last else order[:0]
        tokens = ((positions * 7) % 256).astype(np.int32)
        self._executor.evaluate(Batch(tokens, sequences, positions, order - 1, outputs))
        self._executor.commit(self._sequence, order)
