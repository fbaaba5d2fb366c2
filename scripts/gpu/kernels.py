"""Measures single kernels of the cuda device on a model's weights and shapes, as shares of the card's limits.

In: a device, a model, limits of the card. Out: rows of tables. Each measurement is a fragment of ops of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.device import CudaDevice
from edgeinfer.backends.cuda.lane import CudaFragmentLane
from edgeinfer.backends.cuda.layout import IntegerForm, form_of
from edgeinfer.backends.cuda.step import LaunchShape, chunk_bound
from edgeinfer.engine.probing.rates import placed_step
from edgeinfer.graph.graph import Fragment, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import PAGE
from edgeinfer.models.load import Model
from edgeinfer.models.quants import format_of
from edgeinfer.models.work import weight_bytes
from gpu.ceilings import Ceilings, seconds_of
from gpu.sizes import Size, megabytes, share

PRODUCT_HEADS = ("format", "tokens", "MB", "µs", "GB/s", "of the copy", "TFLOP/s", "of multiply-adds")
ATTENTION_HEADS = ("tokens", "cached", "MB", "µs", "GB/s", "of the copy", "TFLOP/s", "of multiply-adds")
OTHER_HEADS = ("kernel", "tokens", "launches", "µs each", "GB/s", "of the copy")
OTHERS: tuple[type[Op], ...] = (Embed, RMSNorm, Rope, StoreKV, GatedAct, Add)


@contextmanager
def lane_of(
    device: CudaDevice, model: Model, ops: Sequence[Op], n_context: int, most_tokens: int
) -> Iterator[CudaFragmentLane]:
    """A lane that runs these ops, without inputs and outputs."""
    names = {name for op in ops for name in (*op.reads, *op.writes)}
    buffers = tuple(buffer for buffer in model.spec.buffers if buffer.name in names)
    stages = tuple(Stage(f"op {place}", (op,)) for place, op in enumerate(ops))
    keeps = any(isinstance(op, StoreKV | Attention) for op in ops)
    spec = replace(model.spec, stages=stages, buffers=buffers, kv=model.spec.kv if keeps else ())
    pages = -(-n_context // PAGE) + 1
    limits = Limits(pages * PAGE, pages, most_tokens, most_tokens)
    lane = device.compile_fragment(Fragment(spec, (), ()), model.file, limits)
    try:
        yield lane
    finally:
        lane.close()


def product_rows(device: CudaDevice, model: Model, size: Size, best: Ceilings) -> list[tuple[object, ...]]:
    """Each format of a model at each token count: all products of the format's largest shape, one after the other."""
    tensors = model.file.tensors
    found = [op for op in model.spec.ops() if isinstance(op, MatMul) and op.out != model.spec.logits]
    rows: list[tuple[object, ...]] = []
    for name in sorted({tensors[op.weight.tensor].type_name for op in found}):
        own = [op for op in found if tensors[op.weight.tensor].type_name == name]
        largest = max(own, key=lambda op: op.weight.n_rows * op.weight.columns)
        sides = largest.source, largest.out, largest.weight.columns
        ops = [
            replace(op, accumulate=False, bias=None) for op in own if (op.source, op.out, op.weight.columns) == sides
        ]
        n_bytes = sum(weight_bytes(op.weight, tensors) for op in ops)
        multiply_adds = sum(op.weight.n_rows * op.weight.columns for op in ops)
        is_integer = isinstance(form_of(format_of(tensors[largest.weight.tensor].ggml_type)), IntegerForm)
        with lane_of(device, model, ops, PAGE, max(size.counts)) as lane:
            for count in size.counts:
                taken = _seconds(device, lane, LaunchShape(count, count, 1), size)
                ceiling = best.dot_s if is_integer else best.fma_s
                rows.append((name, count, *_rates(n_bytes, 2 * multiply_adds * count, taken, best, ceiling)))
    return rows


def attention_rows(device: CudaDevice, model: Model, size: Size, best: Ceilings) -> list[tuple[object, ...]]:
    """Attention of all layers over a deep cache; bytes count keys and values, read once for all tokens."""
    ops = [op for op in model.spec.ops() if isinstance(op, Attention)]
    rows: list[tuple[object, ...]] = []
    with lane_of(device, model, ops, size.depth + max(size.counts), max(size.counts)) as lane:
        for count in (1, size.counts[len(size.counts) // 2], size.counts[-1]):
            limits = lane.model.limits
            depth = size.depth
            lane.model.send(placed_step(limits, count, depth))
            shape = LaunchShape(count, 1, chunk_bound(depth + count - 1, limits.n_context // PAGE + 1))
            taken = _seconds(device, lane, shape, size)
            seen = [(op, (op.key_width + op.value_width) * min(depth, op.window or depth)) for op in ops]
            n_bytes = sum(2 * op.kv_heads * numbers for op, numbers in seen)
            done = sum(2 * op.heads * numbers for op, numbers in seen) * count
            rows.append((count, depth, *_rates(n_bytes, done, taken, best, best.fma_s)))
    return rows


def other_rows(device: CudaDevice, model: Model, size: Size, best: Ceilings) -> list[tuple[object, ...]]:
    """The kernels between products, for one token and for many; bytes count the values read and written."""
    widths = {buffer.name: buffer.width for buffer in model.spec.buffers}
    rows: list[tuple[object, ...]] = []
    for kind in OTHERS:
        ops = [op for op in model.spec.ops() if isinstance(op, kind)]
        if not ops:
            continue
        with lane_of(device, model, ops, PAGE, max(size.counts)) as lane:
            for count in (1, size.counts[-1]):
                lane.model.send(placed_step(lane.model.limits, count, 0))
                taken = _seconds(device, lane, LaunchShape(count, 1, 1), size)
                n_bytes = 4 * count * sum(widths[name] for op in ops for name in (*op.reads, *op.writes))
                rate = n_bytes / taken
                each = f"{taken * 1e6 / len(ops):.1f}"
                rows.append((kind.__name__, count, len(ops), each, f"{rate / 1e9:.1f}", share(rate, best.copy_s)))
    return rows


def _seconds(device: CudaDevice, lane: CudaFragmentLane, shape: LaunchShape, size: Size) -> float:
    return seconds_of(device, lambda: lane.start_kernels(shape), lane.model.stream, size.repeats)


def _rates(n_bytes: int, operations: int, seconds: float, best: Ceilings, ceiling: float) -> tuple[str, ...]:
    """MB, µs, GB/s and TFLOP/s; the last two also as shares of the limits."""
    read, done = n_bytes / seconds, operations / seconds
    times = megabytes(n_bytes), f"{seconds * 1e6:.0f}"
    return *times, f"{read / 1e9:.1f}", share(read, best.copy_s), f"{done / 1e12:.3f}", share(done, ceiling)
