"""Rates of a device that runs fragments: what it computes in a second, what launches and the way there and back cost.

In: an open device, a quant format, how many bytes no cache holds. Out: the `DeviceRates` that plans are made from. Such
a device does not tell what each op takes, so fragments of different contents are timed from submission to result and
subtracted: many layers less one, feed-forward parts less an empty fragment, deep caches less empty ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from edgeinfer.backends.base import Floats, FragmentDevice, FragmentLane, Step
from edgeinfer.engine.limits import limits_for
from edgeinfer.engine.probing.lane_times import placed_step
from edgeinfer.engine.probing.rates import NARROW, bytes_per_weight, shape_for
from edgeinfer.engine.probing.synthetic import synthetic_model
from edgeinfer.models.fragment import Fragment
from edgeinfer.models.load import Model
from edgeinfer.models.spec import Stage
from edgeinfer.ops import Add, Buffer, MatMul, Op, RMSNorm, Rows, TakeOutputs, reads, writes
from edgeinfer.scheduling import fit
from edgeinfer.scheduling.profile import Curve, DeviceRates, Link
from edgeinfer.scheduling.work import work_of

SIZES = {1: 12, 8: 6, 64: 3, 256: 2}
"""Tokens of the passes that are timed, and how many of each."""
DEEP = 1024
"""Cached tokens of the passes that tell what attention takes."""
ATTENTION_SIZES = (1, 8, 256)
N_CONTEXT, MOST_TOKENS = 2304, 256
LINK_WIDTH = 8192
"""Numbers of a row that cross to the device: with MOST_TOKENS rows, 8 MB."""
CHUNK = 256
MOST_RATE = 1e13
"""Of anything in a second that is believed: where a difference of two times is nothing or less, it is that."""
LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class _Times:
    """Median seconds from submission to result, by tokens of the pass; `deep` after DEEP cached ones."""

    first: Mapping[int, float]
    deep: Mapping[int, float]


class AcceleratorProbe:
    """Fragments of a synthetic model on a device. Close it; the device is its owner's."""

    def __init__(self, device: FragmentDevice, form: str, footprint: int, head_width: int = 64) -> None:
        """Raises as the device does when it compiles."""
        self._device, self._form, self._per_weight = device, form, bytes_per_weight(form)
        self._shape = replace(shape_for(self._per_weight, footprint, head_width), n_context=N_CONTEXT)
        self._limits = replace(limits_for(N_CONTEXT), max_tokens=MOST_TOKENS)
        self._open = ExitStack()
        self._model: Model = self._open.enter_context(synthetic_model(self._shape, form))
        self._work = work_of(self._model.spec, self._model.file.tensors)

    def close(self) -> None:
        """Give back the model's memory."""
        self._open.close()

    def rates(self, name: str, kind: str, memory_bytes: int) -> DeviceRates:
        """Measure now. Raises DeviceFailed."""
        many = self._shape.n_layers
        link, empty = self._link()
        parts = {n_layers: self._layers(n_layers, _feed_forward) for n_layers in (1, many)}
        whole = self._layers(many, tuple)
        stage = next(each for each in self._work.stages if each.name == "blk.0").shape
        share = _share(self._model.spec.stages[1])
        passes, cached = [], []
        for n_tokens in SIZES:
            idle = empty(n_tokens)
            products = {n: max(LEAST_S, times.first[n_tokens] - idle) / share for n, times in parts.items()}
            least = stage.n_elements * n_tokens * many / MOST_RATE
            others = max(least, whole.first[n_tokens] - idle - products[many])
            cached.append(self._pass(n_tokens, 0, 1, products[1], 0.0, 0.0))
            passes.append(self._pass(n_tokens, 0, many, products[many], 0.0, others))
        heads = stage.attention
        assert heads is not None
        deep = []
        for n_tokens in ATTENTION_SIZES:
            least = heads.multiply_adds(n_tokens, DEEP) * many / MOST_RATE
            attention = max(least, whole.deep[n_tokens] - whole.first[n_tokens])
            deep.append(self._pass(n_tokens, DEEP, many, LEAST_S, attention, 0.0))
        n_bytes = self._shape.layer_weights * many * self._per_weight
        product = fit.product_rates(self._per_weight, passes, cached, n_bytes)
        op_s, elements = fit.element_rates(stage.n_elements, stage.n_ops, passes)
        return DeviceRates(
            name=name,
            kind=kind,
            memory_bytes=memory_bytes,
            read=Curve.level(product.weights_read_s * self._per_weight),
            products=MappingProxyType({self._form: product}),
            attention=(fit.attention_rates(heads, deep),),
            element_rate=Curve(elements.at, tuple(min(MOST_RATE, value) for value in elements.values)),
            op_s=op_s,
            pass_s=2 * link.latency_s,
            link=link,
        )

    def _pass(
        self, n_tokens: int, n_cached: int, n_layers: int, products: float, attention: float, others: float
    ) -> fit.PassTimes:
        n_weights = self._shape.layer_weights * n_layers
        return fit.PassTimes(
            n_tokens, n_cached, n_layers, (fit.ProductTime(NARROW, n_weights, products),), attention, others
        )

    def _link(self) -> tuple[Link, Callable[[int], float]]:
        """The way there and back, and seconds of a fragment that computes next to nothing, by tokens of a pass."""
        wide = Buffer("wide", LINK_WIDTH)
        there = self._timed((TakeOutputs("wide", "few", LINK_WIDTH),), (wide, Buffer("few", LINK_WIDTH, Rows.OUTPUTS)))
        back = self._timed((Add("wide", "wide", LINK_WIDTH),), (wide,))
        small = self._timed((Add("x", "x", NARROW),), (Buffer("x", NARROW),))
        n_bytes = 4.0 * LINK_WIDTH * (MOST_TOKENS - 1)
        least = n_bytes / MOST_RATE
        there_s = max(least, there.first[MOST_TOKENS] - there.first[1])
        back_s = max(least, back.first[MOST_TOKENS] - back.first[1] - there_s)
        link = Link(n_bytes / there_s, n_bytes / back_s, max(LEAST_S, small.first[1] / 2))
        return link, lambda n_tokens: small.first[n_tokens]

    def _timed(self, ops: tuple[Op, ...], buffers: tuple[Buffer, ...]) -> _Times:
        spec = replace(self._model.spec, stages=(Stage("link", ops),), buffers=buffers, kv=())
        outputs = tuple(dict.fromkeys(name for op in ops for name in writes(op)))
        inputs = tuple(dict.fromkeys(name for op in ops for name in reads(op)))
        return self._times(Fragment(spec, inputs, outputs), deep=False)

    def _layers(self, n_layers: int, chosen: Callable[[tuple[Op, ...]], tuple[Op, ...]]) -> _Times:
        """Times of the first layers, or of those of their ops that are chosen."""
        spec = self._model.spec
        stages = tuple(Stage(stage.name, chosen(stage.ops)) for stage in spec.stages[1 : 1 + n_layers])
        names = {name for stage in stages for op in stage.ops for name in (*reads(op), *writes(op))}
        buffers = tuple(buffer for buffer in spec.buffers if buffer.name in names)
        attends = chosen is tuple
        own = replace(spec, stages=stages, buffers=buffers, kv=spec.kv[:n_layers] if attends else ())
        return self._times(Fragment(own, ("x",), ("x",)), deep=attends)

    def _times(self, fragment: Fragment, *, deep: bool) -> _Times:
        lane = self._device.compile_fragment(fragment, self._model.file, self._limits)
        try:
            widths = {buffer.name: buffer.width for buffer in fragment.spec.buffers}
            inputs = {name: np.zeros((MOST_TOKENS, widths[name]), np.float32) for name in fragment.inputs}
            first = {n: self._median(lane, inputs, n, 0, count) for n, count in SIZES.items()}
            if not deep:
                return _Times(first, {})
            for start in range(0, DEEP, CHUNK):
                _run(lane, placed_step(self._limits, CHUNK, start), inputs)
            return _Times(first, {n: self._median(lane, inputs, n, DEEP, SIZES[n]) for n in ATTENTION_SIZES})
        finally:
            lane.close()

    def _median(
        self, lane: FragmentLane, inputs: Mapping[str, Floats], n_tokens: int, depth: int, n_runs: int
    ) -> float:
        """Of passes one after the other, the first of which is not counted; each goes on where the last one ended."""
        found = []
        for run in range(n_runs + 1):
            step = placed_step(self._limits, n_tokens, depth + run * n_tokens)
            began = time.perf_counter()
            _run(lane, step, inputs)
            found.append(time.perf_counter() - began)
        return statistics.median(found[1:])


def _run(lane: FragmentLane, step: Step, inputs: Mapping[str, Floats]) -> None:
    lane.submit(step, {name: values[: len(step.batch.tokens)] for name, values in inputs.items()})
    lane.wait()


def _feed_forward(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The ops of a layer from its second norm on."""
    norms = [place for place, op in enumerate(ops) if isinstance(op, RMSNorm)]
    return ops[norms[-1] :]


def _share(stage: Stage) -> float:
    """Share of a layer's weights that its feed-forward part has."""

    def weights(ops: tuple[Op, ...]) -> int:
        return sum(op.weight.n_rows * op.weight.columns for op in ops if isinstance(op, MatMul))

    return weights(_feed_forward(stage.ops)) / weights(stage.ops)
