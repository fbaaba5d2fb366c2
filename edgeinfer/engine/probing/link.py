"""The link between the machine's memory and a device: bytes per second each way, seconds per message.

In: an open device that runs fragments. Out: a `Link`. Fragments that compute almost nothing are timed from submission
to result, few rows against many.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgeinfer.backends.base import FragmentDevice, FragmentLane, Limits
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.lane_times import placed_step
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.graph.graph import Fragment, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, Rows
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.step import Floats
from edgeinfer.models.load import Model
from edgeinfer.scheduling.machine.profile import Link

WIDTH, NARROW = 8192, 256
"""Numbers per row of the transferred rows (with MANY rows, 8 MB), and of almost empty ones."""
FEW, MANY = 1, 256
N_RUNS = 5
MOST_BYTES_S = 1e13
"""Highest rate that is believed, used where the difference of two times is zero or negative."""
LEAST_S = 1e-9
SHAPE = ModelShape(NARROW, NARROW, 1, 1, 64, 1, NARROW, MANY)


def measured_link(device: FragmentDevice, form: str) -> Link:
    """Measure now, beside a model whose matrices have a format. Raises DeviceFailed."""
    with synthetic_model(SHAPE, form) as model:
        wide = Buffer("wide", WIDTH)
        few = Buffer("few", WIDTH, Rows.OUTPUTS)
        there = _seconds(device, model, (TakeOutputs("wide", "few", WIDTH),), (wide, few))
        back = _seconds(device, model, (Add("wide", "wide", WIDTH),), (wide,))
        small = _seconds(device, model, (Add("x", "x", NARROW),), (Buffer("x", NARROW),))
    n_bytes = 4.0 * WIDTH * (MANY - FEW)
    least = n_bytes / MOST_BYTES_S
    there_s = max(least, there[MANY] - there[FEW])
    back_s = max(least, back[MANY] - back[FEW] - there_s)
    return Link(n_bytes / there_s, n_bytes / back_s, max(LEAST_S, small[FEW] / 2))


def _seconds(
    device: FragmentDevice, model: Model, ops: tuple[Op, ...], buffers: tuple[Buffer, ...]
) -> Mapping[int, float]:
    """Median seconds of a fragment of these ops, by rows."""
    spec = replace(model.spec, stages=(Stage("link", ops),), buffers=buffers, kv=())
    outputs = tuple(dict.fromkeys(name for op in ops for name in op.writes))
    inputs = tuple(dict.fromkeys(name for op in ops for name in op.reads))
    limits = replace(limits_for(2 * MANY), max_tokens=MANY)
    lane = device.compile_fragment(Fragment(spec, inputs, outputs), model.file, limits)
    try:
        widths = {buffer.name: buffer.width for buffer in buffers}
        given = {name: np.zeros((MANY, widths[name]), np.float32) for name in inputs}
        return {n: statistics.median(_run(lane, limits, given, n) for _ in range(N_RUNS)) for n in (FEW, MANY)}
    finally:
        lane.close()


def _run(lane: FragmentLane, limits: Limits, inputs: Mapping[str, Floats], n_rows: int) -> float:
    step = placed_step(limits, n_rows, 0)
    began = time.perf_counter()
    lane.submit(step, {name: values[:n_rows] for name, values in inputs.items()})
    lane.wait()
    return time.perf_counter() - began
