"""Profiles the ops of a pass, on our devices that support it.

In: a `BenchOpening`; jobs "ops". Out: replies with `OpTime`s. Opens its own lane, marks the cached tokens in the
bookkeeping only (the contents of the cache do not change the time), and has the lane profile one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from edgeinfer.app.bench.messages import BenchJob, BenchOpening, BenchReply, OpTime
from edgeinfer.app.bench.subject import NotMeasurable, random_tokens
from edgeinfer.backends.base import DeviceOptions, Lane, open_device
from edgeinfer.backends.capabilities import KernelTime
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.graph.step import Batch, Step
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.machine.topology import usable_cores

PROFILED_PASSES = 15


class OpProfile:
    """A lane opened for profiling."""

    def __init__(self, opening: BenchOpening) -> None:
        self._limits = limits_for(opening.n_context, kv=opening.kv)
        self._model = open_model(opening.model, opening.n_context, opening.approx)
        cores = usable_cores() if opening.cores is None else opening.cores
        self._device = open_device(opening.executor, DeviceOptions(opening.threads, cores))
        self._lane: Lane = self._device.compile(self._model.spec, self._model.file, self._limits)

    def run(self, job: BenchJob) -> BenchReply:
        """Profile passes of n tokens (at most one pass's limit) and reply with the median of each op's times."""
        op_times = self._lane.capabilities.op_times
        if op_times is None:
            raise NotMeasurable(f"{self._device.name} does not time its ops")
        n_tokens = min(job.n, self._limits.max_tokens)
        steps = [self._placed(n_tokens, job.depth) for _ in range(PROFILED_PASSES)]
        profiles = [op_times.profile(step) for step in steps][1:]
        ops = tuple(_median([profile[place] for profile in profiles]) for place in range(len(profiles[0])))
        seconds = sum(one.busy_s + one.waiting_s for one in ops)
        return BenchReply({n_tokens: seconds}, ops=ops, overhead=asdict(op_times.overhead()))

    def close(self) -> None:
        self._lane.close()
        self._device.close()
        self._model.close()

    def _placed(self, n_tokens: int, depth: int) -> Step:
        """A pass over one sequence's tokens after `depth` cached ones, with the logits of the last token."""
        states = self._lane.capabilities.states
        cache = KVCache(self._limits.n_pages, self._limits.n_context, 0 if states is None else states.n_slots)
        sequence = cache.create()
        for start in range(0, depth, self._limits.max_tokens):
            count = min(self._limits.max_tokens, depth - start)
            cache.place(self._batch(sequence, start, count))
            cache.commit(sequence, np.arange(count, dtype=np.int32))
        return cache.place(self._batch(sequence, depth, n_tokens)).step

    def _batch(self, sequence: int, start: int, count: int) -> Batch:
        order = np.arange(count, dtype=np.int32)
        tokens = random_tokens(start, count, self._model.spec.n_vocab)
        return Batch(tokens, np.full(count, sequence, np.int32), order + np.int32(start), order - 1, order[-1:])


def _median(times: Sequence[KernelTime]) -> OpTime:
    busy, waiting = (float(np.median(values)) for values in zip(*((t.busy_s, t.waiting_s) for t in times), strict=True))
    return OpTime(times[0].op, times[0].kernel, times[0].calls, busy, waiting)
