"""Timing passes of whole synthetic models on a device, and splitting their times into parts.

In: an open device, a shape, a quant format. Out: seconds of passes with the tokens cached before each, run as in normal
use: through the executor, chunk by chunk. Small passes continue where the last one ended; a prompt is read into an
empty cache. From passes of models whose work is known, the `Parts` that explain their times best, none below 0, by
least squares of relative errors: seconds per pass, token, op, weight, element, and of attention. The parts can be told
apart because the models have different shapes. Mirrors `scheduling.cost.seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Device
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.engine.run.executor import Executor
from edgeinfer.engine.shared_lane.timeline import StepTimeline
from edgeinfer.graph.step import Batch
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of

SEED = 1
"""Seed of the weights: runtimes that store equal matrices only once would read zeros from their caches."""
PASS, TOKEN, OP, ELEMENT, CACHED, ROW = "pass", "token", "op", "element", "cached", "row"
NARROW, WIDE = "narrow weight", "wide weight"
"""Weights of matrices of at most NARROW_COLUMNS, and of at least WIDE_COLUMNS; others count partly as both."""
NARROW_COLUMNS, WIDE_COLUMNS = 512, 2048
PER_PASS = 0
"""Used in place of the tokens of a pass for parts that do not depend on them."""
MOST_STEPS = 200
"""Iterations of the solver; each adds a part or removes some."""
Part = tuple[str, int]
"""A kind of part, and the tokens of the passes it is measured for."""
Numbers = NDArray[np.float64]


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


@dataclass(frozen=True, slots=True)
class TimedPass:
    """Seconds of a pass of a model. `is_quiet`: no other program is seen to have used the machine meanwhile."""

    work: ModelWork
    step: Pass
    seconds: float
    is_quiet: bool = True


def amounts(work: ModelWork, step: Pass) -> dict[Part, float]:
    """The amount of each part in a pass of one sequence on one device."""
    n = step.n_tokens
    found: dict[Part, float] = {(PASS, PER_PASS): 1.0, (TOKEN, PER_PASS): n, (OP, PER_PASS): 0.0}

    def add(kind: str, n_tokens: int, amount: float) -> None:
        found[kind, n_tokens] = found.get((kind, n_tokens), 0.0) + amount

    for stage in work.stages:
        shape = stage.shape
        n_rows = min(step.n_outputs, n) if shape.for_outputs else n
        add(OP, PER_PASS, shape.n_ops)
        for product in shape.products if n_rows else ():
            wide = (product.columns - NARROW_COLUMNS) / (WIDE_COLUMNS - NARROW_COLUMNS)
            add(NARROW, n_rows, product.n_weights * (1 - min(1.0, max(0.0, wide))))
            add(WIDE, n_rows, product.n_weights * min(1.0, max(0.0, wide)))
        if n_rows > 1:
            add(ELEMENT, n_rows, shape.n_elements)
        heads = shape.attention
        if heads is not None and step.n_cached:
            add(CACHED, n, heads.multiply_adds(n, step.n_cached) - heads.multiply_adds(n, 0))
            if n > 1:
                add(ROW, n, n * heads.heads)
    return found


def separated(passes: Sequence[TimedPass], known: Mapping[Part, float] | None = None) -> Mapping[Part, float]:
    """Seconds of one unit of each part that is not `known`."""
    known = known or {}
    found = [amounts(each.work, each.step) for each in passes]
    parts = sorted({part for each in found for part, amount in each.items() if amount and part not in known})
    matrix = np.array([[each.get(part, 0.0) for part in parts] for each in found])
    seconds = np.array([each.seconds for each in passes])
    left = seconds - [sum(amount * known.get(part, 0.0) for part, amount in each.items()) for each in found]
    scales = np.maximum(np.linalg.norm(matrix / seconds[:, None], axis=0), 1e-300)
    values = nonnegative(matrix / seconds[:, None] / scales, left / seconds) / scales
    return dict(zip(parts, values.tolist(), strict=True))


def nonnegative(matrix: Numbers, wanted: Numbers) -> Numbers:
    """The x >= 0 that minimizes |matrix @ x - wanted|.

    matrix float64[m, n], wanted float64[m]. Source: Lawson and Hanson, Solving Least Squares Problems (1974), 23.3.
    """
    n = matrix.shape[1]
    taken = np.zeros(n, np.bool_)
    found = np.zeros(n)
    for _ in range(MOST_STEPS):
        slopes = matrix.T @ (wanted - matrix @ found)
        slopes[taken] = -np.inf
        if taken.all() or slopes.max() <= 1e-10:
            break
        taken[int(np.argmax(slopes))] = True
        while True:
            tried = np.zeros(n)
            tried[taken] = np.linalg.lstsq(matrix[:, taken], wanted, rcond=None)[0]
            below = taken & (tried <= 0)
            if not below.any():
                break
            share = np.min(found[below] / np.maximum(found[below] - tried[below], 1e-300))
            found = found + share * (tried - found)
            taken &= found > 1e-14
            found[~taken] = 0.0
        found = tried
    return found
