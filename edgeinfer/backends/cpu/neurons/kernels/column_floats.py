"""Down products of active neurons whose columns are floats: out[t, row] (+)= sum of columns * hidden (+ bias).

Memory: as `kernels.columns`, but activations are the hidden values, float32[n, activations_stride / 4], and sums
hold two chains, of even and of odd neurons, half a stride apart, as `kernels.matmul.floats` adds them. A neuron adds
nothing to the other chain. NumPy twin: hidden @ columns.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.matmul.floats import LOADS
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.panels import BLOCK, UNIT_ROWS
from edgeinfer.backends.cpu.neurons.kernels.columns import neurons_until, write_units
from edgeinfer.backends.cpu.neurons.kernels.layout import CODE_BITS, ColumnForm
from edgeinfer.backends.cpu.neurons.kernels.records import COLUMN_PRODUCT
from edgeinfer.jit import emit, simd

columns_at = simd.record_at(COLUMN_PRODUCT)
VECTORS = UNIT_ROWS // emit.LANES


@intrinsic(prefer_literal=True)
def add_columns(
    context, key, n_tokens, columns, neurons, count, row_at, source, source_stride, sums, sums_stride, fresh
):
    """Two chains of sums, float32[n_tokens, 32] each, (+)= the contribution of `count` neurons; `fresh`: from zeros."""
    code, n = ColumnForm.parse(key.literal_value).code, n_tokens.literal_value
    load, vector_bytes = LOADS[code], emit.LANES * CODE_BITS[code] // 8

    def generate(context, builder, signature, values):
        _, _, columns, neurons, count, row_at, source, source_stride, sums, sums_stride, fresh = values
        zero, chain = emit.repeated(emit.F32S, 0.0), builder.lshr(sums_stride, emit.integer(1))
        begins = builder.icmp_signed("!=", fresh, emit.integer(0))
        rows = [builder.add(sums, builder.mul(sums_stride, emit.integer(token))) for token in range(n)]
        places = [
            (builder.add(row, chain) if odd else row, 64 * vector)
            for row in rows
            for odd in range(2)
            for vector in range(VECTORS)
        ]
        before = [builder.select(begins, zero, emit.load_floats(builder, row, at)) for row, at in places]

        def step(index, carried):
            at = builder.add(columns, builder.mul(index, emit.integer(8)))
            column = builder.add(emit.load(builder, at, emit.I64, align=8), row_at)
            at = builder.add(neurons, builder.mul(index, emit.integer(4)))
            neuron = builder.zext(emit.load(builder, at, emit.I32, align=4), emit.I64)
            is_odd = builder.trunc(neuron, ir.IntType(1))
            weights = [load(builder, column, vector * vector_bytes) for vector in range(VECTORS)]
            value_at, results = builder.add(source, builder.mul(neuron, emit.integer(4))), list(carried)
            for token in range(n):
                at = builder.add(value_at, builder.mul(source_stride, emit.integer(token)))
                value = emit.broadcast_float(builder, at)
                for odd, own in enumerate((builder.select(is_odd, zero, value), builder.select(is_odd, value, zero))):
                    for vector, weight in enumerate(weights):
                        number = (2 * token + odd) * VECTORS + vector
                        results[number] = emit.fma(builder, weight, own, results[number])
            return results

        after = emit.loop(builder, count, before, step)
        for total, (row, at) in zip(after, places, strict=True):
            emit.store(builder, total, row, at, 4)
        return context.get_dummy_value()

    return types.void(key, n_tokens, *[types.intp] * 9), generate


def column_product(key: str) -> Callable[..., None]:
    """The kernel for float columns of that form."""
    unit_bytes = UNIT_ROWS * CODE_BITS[ColumnForm.parse(key).code] // 8

    def columns(pointer, worker, work_split):
        args = columns_at(pointer)
        count, n_chosen, stride = simd.load_int64(args.count), simd.load_int64(args.n_chosen), args.activations_stride
        first, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
        end = 0
        for block in range(args.n_blocks):
            begin, end = end, neurons_until(args, n_chosen, end, BLOCK * (args.first_block + block + 1))
            n_here, fresh = end - begin, 1 if args.is_first != 0 and block == 0 else 0
            listed, numbers = args.columns + 8 * begin, args.neurons + 4 * begin
            for unit in range(first, stop):
                token, row_at = 0, unit * unit_bytes
                while token < count:
                    own = args.sums + token * args.sums_stride + unit * 4 * UNIT_ROWS
                    x, width = args.activations + token * stride, args.sums_stride
                    if count - token >= 4:
                        add_columns(key, 4, listed, numbers, n_here, row_at, x, stride, own, width, fresh)
                        token += 4
                    elif count - token >= 2:
                        add_columns(key, 2, listed, numbers, n_here, row_at, x, stride, own, width, fresh)
                        token += 2
                    else:
                        add_columns(key, 1, listed, numbers, n_here, row_at, x, stride, own, width, fresh)
                        token += 1
        if args.is_last != 0:
            write_units(args, count, first, stop, 1)

    return columns
