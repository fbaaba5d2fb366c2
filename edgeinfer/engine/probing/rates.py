"""A device's rates, from passes of synthetic models timed op by op: one model per quant format.

In: a device key and options, formats, how many bytes exceed every cache. Out: rates of matmuls, attention and elements,
and the time of a pass outside of its ops. The device must have lanes that time their ops. Places tokens only in the
accounting of the KV cache, because the contents of the cache do not change the time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from edgeinfer.backends.base import WHOLE, DeviceOptions, Limits, OpSeconds, WorkSplit, open_device
from edgeinfer.backends.capabilities import OpTimes, Workers
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.probing.synthetic import ModelShape, synthetic_model
from edgeinfer.engine.run.executor import Executor
from edgeinfer.errors import BadSetting, DeviceUnavailable
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import AttentionHeads, Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Batch, Step
from edgeinfer.models.gguf.header import GGML_TYPES
from edgeinfer.scheduling.cost import fit
from edgeinfer.scheduling.cost.fit import PassTimes, ProductTime
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, ProductRates

NARROW, WIDE = 768, 4096
"""Columns of the measured matrices: most models' are between or near these."""
N_VOCAB, N_CONTEXT = 1024, 2304
SIZES = {1: 4, 2: 2, 3: 2, 4: 2, 6: 2, 8: 3, 16: 1, 64: 1, 256: 1}
"""Tokens of the passes of a full probe, and how many of each are timed in a round;"""
WHOLE_SIZES = {64: 1, 512: 1}
"""those at a precision below the highest, as of image encoders;"""
SHORT_SIZES = {1: 5, 8: 3, 256: 1}
"""those of a short one."""
ARITHMETIC = 64
"""Passes of this many tokens are bound by arithmetic: a few layers are enough to time them."""
FEW_LAYERS = 2
DEEP = 1792
"""Cached tokens of the passes that measure attention."""
ATTENTION_SIZES = (1, 8, 256)
OUTSIDE_TOKENS, OUTSIDE_RUNS = 32, 4
"""Tokens of the passes whose time outside of the lane is compared with that of one token."""
CORE_TOKENS = 32
HEAD_WIDTHS = (64, 128)
ATTENTION, OTHERS = -1, -2
"""Groups of ops other than matmuls; matmuls are grouped by their columns."""


@dataclass(frozen=True, slots=True)
class CommonRates:
    """What does not depend on the format. `pass_s`, `token_s`: time of a pass and of each token outside of the lane."""

    attention: AttentionRates
    pass_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class FormatRates:
    """Results of a synthetic model of one format."""

    form: str
    product: ProductRates
    op_s: float
    element_rate: Curve
    common: CommonRates | None
    speeds: tuple[float, ...]
    whole: AttentionRates | None = None
    """Attention of whole texts, of a format with a precision."""


def shape_for(form_bytes: float, footprint: int, head_width: int) -> ModelShape:
    """A shape whose layers take about `footprint` bytes together."""
    heads = NARROW // head_width
    shape = ModelShape(NARROW, WIDE, heads, heads // 3, head_width, 1, N_VOCAB, N_CONTEXT)
    return replace(shape, n_layers=max(FEW_LAYERS, round(footprint / (shape.layer_weights * form_bytes))))


class FormatProbe:
    """A synthetic model of one format on a device, timed round after round. Close it."""

    def __init__(
        self,
        key: str,
        options: DeviceOptions,
        form: str,
        footprint: int,
        head_width: int,
        *,
        short: bool,
        common: bool = True,
    ) -> None:
        """`form`: a format, and "high" after it for large passes of whole texts at that precision.

        `common`: also measure what no format changes. Raises DeviceUnavailable if ops cannot be timed.
        """
        kind, _, precision = form.partition(" ")
        self._form, self._bytes_per_weight, self._whole = form, bytes_per_weight(kind), bool(precision)
        self._shape = shape_for(self._bytes_per_weight, 0 if precision else footprint, head_width)
        self._sizes, self._common = WHOLE_SIZES if precision else SHORT_SIZES if short else SIZES, common
        limits = replace(limits_for(N_CONTEXT), max_tokens=max(self._sizes))
        self._open = ExitStack()
        try:
            model = self._open.enter_context(synthetic_model(self._shape, kind))
            model = replace(model, spec=whole_texts(model.spec)) if precision else model
            device = open_device(key, options)
            self._open.callback(device.close)
            lane = device.compile(model.spec, model.file, limits)
            self._workers, op_times = lane.capabilities.workers, lane.capabilities.op_times
            if op_times is None:
                raise DeviceUnavailable(f"{device.name} cannot time its ops, so nothing can be predicted of it")
            executor = Executor(device, lane, limits, "synthetic", replace(options, adapts=common))
            self._executor = self._open.enter_context(executor)
            self._times = TimedLane(op_times, model.spec, limits)
        except BaseException:
            self._open.close()
            raise
        self._stage = next(s for s in work_of(model.spec, model.file.tensors).stages if s.name == "blk.0").shape
        self._rounds: dict[tuple[int, int, int | None], list[list[fit.PassTimes]]] = {}
        self._outside: dict[int, list[float]] = {1: [], OUTSIDE_TOKENS: []}
        self._alone: dict[int, float] = {}

    def round(self) -> None:
        """Time every kind of pass once more, long ones first: for 20 ms after others were measured, memory is slow."""
        for n_tokens, n_runs in sorted(self._sizes.items(), reverse=True):
            self._time(n_tokens, 0, FEW_LAYERS if n_tokens >= ARITHMETIC else None, n_runs)
            self._time(n_tokens, 0, 1, n_runs)
        if self._common and not self._whole:
            for n_tokens in ATTENTION_SIZES:
                if n_tokens in self._sizes:
                    self._time(n_tokens, DEEP, FEW_LAYERS, 1)
            for n_tokens, seconds in self._outside.items():
                seconds += _outside_of(self._executor, self._workers, n_tokens)
            self._time_alone()

    def result(self) -> FormatRates:
        """Rates from the medians of all rounds."""
        found = {kind: fit.usual(rounds) for kind, rounds in self._rounds.items()}
        whole = [found[n, 0, FEW_LAYERS if n >= ARITHMETIC else None] for n in self._sizes]
        cached = [found[n, 0, 1] for n in self._sizes]
        depths = [times for (n, _, layers), times in found.items() if n in ATTENTION_SIZES and layers != 1]
        n_bytes = self._shape.layer_weights * self._shape.n_layers * self._bytes_per_weight
        op_s, element_rate = fit.element_rates(self._stage.n_elements, self._stage.n_ops, whole)
        return FormatRates(
            self._form,
            fit.product_rates(self._bytes_per_weight, whole, cached, n_bytes),
            op_s,
            element_rate,
            self._common_rates(depths) if self._common and not self._whole else None,
            tuple(min(self._alone.values()) / seconds for seconds in self._alone.values()),
            fit.attention_rates(self._heads, whole, whole=True) if self._whole else None,
        )

    @property
    def _heads(self) -> AttentionHeads:
        heads = self._stage.attention
        assert heads is not None
        return heads

    def _common_rates(self, depths: Sequence[fit.PassTimes]) -> CommonRates:
        one_s, many_s = (statistics.median(seconds) for seconds in self._outside.values())
        token_s = max(0.0, (many_s - one_s) / (OUTSIDE_TOKENS - 1))
        return CommonRates(fit.attention_rates(self._heads, depths), max(0.0, one_s - token_s), token_s)

    def close(self) -> None:
        """Free the model's memory and threads."""
        self._open.close()

    def _time(self, n_tokens: int, n_cached: int, n_layers: int | None, n_runs: int) -> None:
        times = self._times.passes(n_tokens, n_cached, n_runs=n_runs, n_layers=n_layers)
        self._rounds.setdefault((n_tokens, n_cached, n_layers), []).append(times)

    def _time_alone(self) -> None:
        """Seconds of one layer's matmuls by each worker alone, if there are several."""
        workers = self._workers
        if workers is None or workers.n_workers == 1:
            return
        before = workers.work_split
        for worker in range(workers.n_workers):
            workers.work_split = WorkSplit((worker,), (0, WHOLE))
            for times in self._times.passes(CORE_TOKENS, n_runs=2, n_layers=1):
                seconds = sum(each.seconds for each in times.products)
                self._alone[worker] = min(seconds, self._alone.get(worker, math.inf))
        workers.work_split = before


def whole_texts(spec: ModelSpec) -> ModelSpec:
    """The same model as one that reads whole texts and need not be exact, as image encoders are."""

    def read(op: Op) -> Op:
        return replace(op, causal=False) if isinstance(op, Attention) else op

    stages = tuple(replace(stage, ops=tuple(map(read, stage.ops))) for stage in spec.stages)
    return replace(spec, stages=stages).with_precision("high")


def bytes_per_weight(form: str) -> float:
    """Bytes per weight in files of a format. Raises BadSetting for an unknown format."""
    kind = next((kind for kind in GGML_TYPES.values() if kind.name == form), None)
    if kind is None:
        raise BadSetting(f"no quant format is called {form!r}")
    return kind.block_bytes / kind.block_size


def _outside_of(executor: Executor, workers: Workers | None, n_tokens: int) -> list[float]:
    """Seconds of passes that the lane's workers do not see, including the adaptation that happens in use."""
    sequence = executor.create()
    work_split = None if workers is None else workers.work_split
    order, spent = np.arange(n_tokens, dtype=np.int32), []
    for run in range(OUTSIDE_RUNS):
        positions = order + np.int32(executor.n_cached(sequence))
        tokens = (order * 5 + run * n_tokens) % N_VOCAB
        batch = Batch(tokens.astype(np.int32), np.full(n_tokens, sequence, np.int32), positions, order - 1, order[-1:])
        started = time.perf_counter()
        executor.evaluate(batch)
        executor.commit(sequence, order)
        inside = 0.0 if workers is None else workers.seconds
        spent.append(time.perf_counter() - started - inside)
    executor.free(sequence)
    if workers is not None and work_split is not None:
        workers.work_split = work_split
    return spent[1:]


def combined(found: Sequence[FormatRates]) -> tuple[tuple[AttentionRates, ...], float, Curve, float, float]:
    """Results that do not depend on the format: attention by width, ops, elements, passes, tokens."""
    common = [rates.common for rates in found if rates.common is not None]
    widths: dict[int, list[AttentionRates]] = {}
    for each in common:
        widths.setdefault(each.attention.head_width, []).append(each.attention)
    at = found[0].element_rate.at
    elements = tuple(statistics.median(rates.element_rate(place) for rates in found) for place in at)
    return (
        tuple(fit.median_attention(widths[width]) for width in sorted(widths)),
        statistics.median(rates.op_s for rates in found),
        Curve(at, elements),
        statistics.median(each.pass_s for each in common),
        statistics.median(each.token_s for each in common),
    )


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
