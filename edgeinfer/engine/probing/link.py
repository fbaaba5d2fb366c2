"""The link between the machine's memory and a device: bytes per second each way, seconds per message.

In: an open device that runs fragments, or the host and another device that share a model. Out: a `Link`. Fragments that
compute almost nothing are timed from submission to result, few rows against many. Where two devices share the matmuls
of a model, a message involves more: copying rows, submitting and awaiting the step, adding results. Two small models
then run with half of the rows on either device; the timelines of their passes show how long the host is busy other than
computing or waiting.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.backends.base import Device, FragmentDevice, FragmentLane, Limits
from edgeinfer.backends.capabilities import DeviceCapabilities
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.rates import placed_step
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.engine.probing.whole_passes import WholePasses, nonnegative
from edgeinfer.engine.shared_lane.lane import SharedLane
from edgeinfer.engine.shared_lane.timeline import StepTimeline
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, Rows
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.step import Floats
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import Model
from edgeinfer.scheduling.cost.seconds import ACTIVATION_BYTES
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import Link
from edgeinfer.scheduling.placement.placement import Placement, RowRange, StagePlacement, granule
from edgeinfer.scheduling.placement.step_time import product_groups
from edgeinfer.steps import Progress, no_progress

WIDTH, NARROW = 8192, 256
"""Numbers per row of the transferred rows (with MANY rows, 8 MB), and of almost empty ones."""
FEW, MANY = 1, 256
N_RUNS = 5
MOST_BYTES_S = 1e13
"""Highest rate that is believed, used where the difference of two times is zero or negative."""
LEAST_S = 1e-9
SHAPE = ModelShape(NARROW, NARROW, 1, 1, 64, 1, NARROW, MANY)
SMALL = ModelShape(256, 512, 4, 2, 64, 8, 1024, 1024)
"""A model that computes almost nothing: the fixed cost of an exchange."""
LARGE = ModelShape(1024, 2048, 16, 4, 64, 2, 1024, 1024)
"""A model that exchanges more bytes in fewer messages."""
EXCHANGE_RUNS = {1: 16, 64: 4, 256: 3}
"""Tokens of passes, and how many are timed; the first of each is discarded."""


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


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """Per pass: messages both ways, bytes in them, seconds the host was busy with them, seconds of the others."""

    n: int
    n_bytes: float
    host_s: float
    away_s: float


def measured_exchange(host: Device, other: Device, name: str, form: str, op_s: float) -> Link:
    """Measure now. `op_s`: the cost of an op on the other device, which is not part of a message.

    Raises DeviceFailed, and DeviceUnavailable for devices that cannot share a model.
    """
    found = [each for shape in (SMALL, LARGE) for each in _exchanges(_Halves(host, other, name), shape, form)]
    busy = np.array([[each.n, each.n_bytes, 1.0] for each in found])
    seconds = np.array([each.host_s for each in found])
    scales = np.linalg.norm(busy / seconds[:, None], axis=0)
    message_s, byte_s, _ = nonnegative(busy / seconds[:, None] / scales, np.ones(len(found))) / scales
    smallest = found[0]
    layer = 7 / 4  # matmuls of a layer in its groups
    away_s = max(0.0, smallest.away_s / smallest.n - layer * op_s)
    bytes_s = 1 / max(float(byte_s), 1 / MOST_BYTES_S)
    host_s = max(LEAST_S, float(message_s) / 2)
    return Link(bytes_s, bytes_s, host_s + away_s / 2, host_s)


class _Halves:
    """Two devices as one, each with half of the rows of every matmul. The caller owns them."""

    batch_invariant = False
    capabilities = DeviceCapabilities()

    def __init__(self, host: Device, other: Device, name: str) -> None:
        self.name, self._host, self._other, self._other_name = f"{host.name}+{name}", host, other, name

    def compile(self, spec: ModelSpec, file: GGUFFile, limits: Limits, progress: Progress = no_progress) -> SharedLane:
        """A model split in halves."""
        placement = halves(work_of(spec, file.tensors), self._host.name, self._other_name)
        return SharedLane(spec, placement, self._host, {self._other_name: self._other}, file, limits, progress)

    def close(self) -> None:
        """Leaves the devices open."""


def halves(work: ModelWork, host: str, other: str) -> Placement:
    """Half of the rows of every matmul on each device, everything else on the host."""
    stages = []
    for stage in work.stages:
        cuts = [
            product.n_rows // 2 // granule(product.n_rows) * granule(product.n_rows) for product in stage.shape.products
        ]
        parts = tuple(
            (RowRange(host, 0, cut), RowRange(other, cut, product.n_rows))
            for cut, product in zip(cuts, stage.shape.products, strict=True)
        )
        stages.append(StagePlacement(host, parts, None if stage.shape.attention is None else host))
    return Placement(tuple(stages))


def _exchanges(device: _Halves, shape: ModelShape, form: str) -> list[_Exchanges]:
    """For each size, the lower quartile of its passes."""
    whole = WholePasses(device, shape, form)
    try:
        found = []
        for n_tokens, n_runs in EXCHANGE_RUNS.items():
            passes = []
            for _ in range(n_runs + 1):
                if n_tokens > 1:
                    whole.prompt(n_tokens)
                else:
                    whole.on(n_tokens)
                passes.append(
                    _read(whole.timeline, device.name.partition("+")[0], _exchanged_bytes(whole.work, n_tokens))
                )
            found.append(_usual(passes[1:]))
        return found
    finally:
        whole.close()


def _read(timeline: StepTimeline, host: str, n_bytes: float) -> _Exchanges:
    n = sum(span.device != host for span in timeline.spans)
    host_s = timeline.ended - timeline.began - timeline.busy_s(host) - timeline.waited_s
    away = next(name for name in timeline.devices if name != host)
    both_s = timeline.overlap * min(timeline.busy_s(host), timeline.busy_s(away))
    return _Exchanges(n, n_bytes, max(LEAST_S, host_s), timeline.waited_s + both_s)


def _usual(passes: Sequence[_Exchanges]) -> _Exchanges:
    """The lower quartile of each time: disturbance by other programs only ever adds to it."""
    place = len(passes) // 4
    host_s = sorted(each.host_s for each in passes)[place]
    away_s = sorted(each.away_s for each in passes)[place]
    return _Exchanges(passes[0].n, passes[0].n_bytes, host_s, away_s)


def _exchanged_bytes(work: ModelWork, n_tokens: int) -> float:
    """Bytes that a pass in halves exchanges: each group's input, and half of its rows back."""
    total = 0.0
    for stage in work.stages:
        n_rows = 1 if stage.shape.for_outputs else n_tokens
        for first, stop in product_groups(stage.shape):
            group = stage.shape.products[first:stop]
            total += n_rows * ACTIVATION_BYTES * (group[0].columns + sum(each.n_rows for each in group) / 2)
    return total
