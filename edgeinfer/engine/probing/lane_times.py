"""Timing a lane op by op: passes of a synthetic model, and the time of each kind of op in them.

In: the op times of an open lane, and numbers of tokens. Out: `scheduling.cost.fit.PassTimes`. Places tokens only in the
accounting of the KV cache, because the contents of the cache do not change the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from edgeinfer.backends.base import Limits, OpSeconds
from edgeinfer.backends.capabilities import OpTimes
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Batch, Step
from edgeinfer.scheduling.cost.fit import PassTimes, ProductTime

ATTENTION, OTHERS = -1, -2
"""Groups of ops other than matmuls; matmuls are grouped by their columns."""


class TimedLane:
    """A lane to be measured; its owner closes it."""

    def __init__(self, op_times: OpTimes, spec: ModelSpec, limits: Limits) -> None:
        self._op_times, self._spec, self._limits = op_times, spec, limits
        self._layers = frozenset(stage.name for stage in spec.stages if stage.name.startswith("blk."))
        self._stage_of = {id(op): stage.name for stage in spec.stages for op in stage.ops}
        self._gates = {
            id(op): other
            for stage in spec.stages
            for op in stage.ops
            if isinstance(op, GatedAct)
            for other in stage.ops
            if isinstance(other, MatMul) and other.out == op.gate
        }

    def passes(
        self, n_tokens: int, n_cached: int = 0, *, n_runs: int = 5, n_layers: int | None = None
    ) -> list[PassTimes]:
        """Timed runs of a pass, of all layers or only of the first few, whose weights may then be cached."""
        step = placed_step(self._limits, n_tokens, n_cached)
        part = None if n_layers is None else frozenset(f"blk.{n}" for n in range(n_layers))
        layers = self._layers if part is None else part
        runs = [self._seconds(self._op_times.time_ops(step, part), layers) for _ in range(n_runs + 1)]
        return [self._pass_times(n_tokens, n_cached, layers, seconds) for seconds in runs[1:]]

    def _pass_times(
        self, n_tokens: int, n_cached: int, layers: Collection[str], seconds: dict[int, float]
    ) -> PassTimes:
        products = tuple(
            ProductTime(columns, self._n_weights(columns, layers), seconds[columns])
            for columns in sorted(seconds)
            if columns > 0
        )
        rest = (seconds.get(group, 0.0) for group in (ATTENTION, OTHERS))
        return PassTimes(n_tokens, n_cached, len(layers), products, *rest)

    def _n_weights(self, columns: int, layers: Collection[str]) -> int:
        """Weights of all matrices with this many columns in these layers."""
        ops = (op for stage in self._spec.stages if stage.name in layers for op in stage.ops)
        return columns * sum(op.weight.n_rows for op in ops if isinstance(op, MatMul) and op.weight.columns == columns)

    def _seconds(self, ops: Sequence[OpSeconds], layers: Collection[str]) -> dict[int, float]:
        """Seconds in these layers by group. A gate counts with its matmul, as where one kernel does both."""
        seconds: defaultdict[int, float] = defaultdict(float)
        for each in ops:
            if self._stage_of[id(each.op)] not in layers:
                continue
            if each.multiplies or id(each.op) in self._gates:
                op = self._gates.get(id(each.op), each.op)
                assert isinstance(op, MatMul)
                seconds[op.weight.columns] += each.seconds
            else:
                seconds[ATTENTION if isinstance(each.op, Attention) else OTHERS] += each.seconds
        return seconds


def placed_step(limits: Limits, n_tokens: int, n_cached: int) -> Step:
    """A pass of one sequence's tokens after `n_cached` others, with logits for the last."""
    cache = KVCache(limits.n_pages, limits.n_context)
    sequence = cache.create()
    for start in range(0, n_cached, limits.max_tokens):
        count = min(limits.max_tokens, n_cached - start)
        cache.place(_batch(sequence, start, count))
        cache.commit(sequence, np.arange(count, dtype=np.int32))
    return cache.place(_batch(sequence, n_cached, n_tokens)).step


def _batch(sequence: int, start: int, count: int) -> Batch:
    order = np.arange(count, dtype=np.int32)
    tokens = (order * 7 + start) % 256
    return Batch(
        tokens.astype(np.int32), np.full(count, sequence, np.int32), order + np.int32(start), order - 1, order[-1:]
    )
