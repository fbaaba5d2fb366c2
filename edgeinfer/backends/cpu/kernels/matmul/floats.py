"""Products of float panels with float32 activations: out[t, row] (+)= sum over columns of weight * activation.

Memory: weights of float16, bfloat16 or float32 [n_panels, columns, 16] (`panels.FloatPanel`, n_panels even), source
float32[n, source_stride / 4] (zero beyond its width), out float32[n, out_stride / 4]. Workers share pairs of panels, or
the tokens if there are many; then a pair is converted to float32 in scratch of the worker, float32[2, columns, 16], if
there is any, once for a block of tokens. Even and odd columns are two chains, joined at the end, the same for any tile
size. NumPy twin: source @ weights.T.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.matmul.integers import share_of_tokens, write_plain
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout import rounded
from edgeinfer.backends.cpu.layout.panels import FLOAT_COLUMNS, PANEL_ROWS, FloatPanel
from edgeinfer.backends.cpu.layout.records import FLOAT_PRODUCT
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(FLOAT_PRODUCT)

LOADS = {"f16": emit.load_halves, "bf16": emit.load_bfloats, "f32": emit.load_floats}
CHAINS = 2
SUMS_BYTES = 2 * 6 * 64


@intrinsic(prefer_literal=True)
def multiply(context, element, n_tokens, panels, source, source_stride, n_rounds, sums):
    """float32[n_panels, n_tokens, 16]: a tuple of panel addresses times a few tokens, over all columns."""
    load, size, n_panels = LOADS[element.literal_value], n_tokens.literal_value, len(panels)
    column_bytes = PANEL_ROWS * FloatPanel(element.literal_value).element_bytes

    def generate(context, builder, signature, values):
        _, _, panels, source, source_stride, n_rounds, out = values
        tokens = [builder.add(source, builder.mul(source_stride, emit.integer(token))) for token in range(size)]
        addresses = [builder.extract_value(panels, number) for number in range(n_panels)]

        def body(index, sums):
            at = builder.mul(index, emit.integer(FLOAT_COLUMNS * column_bytes))
            columns = [builder.add(address, at) for address in addresses]
            places = [builder.add(token, builder.mul(index, emit.integer(4 * FLOAT_COLUMNS))) for token in tokens]
            results = list(sums)
            for column in range(FLOAT_COLUMNS):
                weights = [load(builder, address, column * column_bytes) for address in columns]
                for token, place in enumerate(places):
                    value = emit.broadcast_float(builder, place, 4 * column)
                    for number, weight in enumerate(weights):
                        own = (number * size + token) * CHAINS + column % CHAINS
                        results[own] = emit.fma(builder, weight, value, results[own])
            return results

        sums = emit.loop(builder, n_rounds, [emit.repeated(emit.F32S, 0.0)] * (n_panels * size * CHAINS), body)
        for place in range(n_panels * size):
            emit.store(builder, builder.fadd(*sums[place * CHAINS : place * CHAINS + CHAINS]), out, 64 * place, 64)
        return context.get_dummy_value()

    return types.void(element, n_tokens, panels, *[types.intp] * 4), generate


@intrinsic(prefer_literal=True)
def widen(context, element, source, count, to):
    """Convert 16 * count numbers to float32, whose conversion is exact."""
    load, size = LOADS[element.literal_value], FloatPanel(element.literal_value).element_bytes

    def generate(context, builder, signature, values):
        _, source, count, to = values

        def vector(index, nothing):
            value = load(builder, builder.add(source, builder.mul(index, emit.integer(PANEL_ROWS * size))))
            emit.store(builder, value, builder.add(to, builder.mul(index, emit.integer(64))), 0, 64)
            return []

        emit.loop(builder, count, [], vector)
        return context.get_dummy_value()

    return types.void(element, *[types.intp] * 3), generate


@inline
def multiply_unit(element, isa, size, first, second, source, stride, n_rounds, sums):
    """`multiply` of two panels, one after the other if there are few registers."""
    if simd.many_registers(isa):
        multiply(element, size, (first, second), source, stride, n_rounds, sums)
    else:
        multiply(element, size, (first,), source, stride, n_rounds, sums)
        multiply(element, size, (second,), source, stride, n_rounds, sums + 64 * size)


@inline
def multiply_block(element, isa, args, unit, first, second, token, end, sums):
    """Results of a unit for tokens `token` to `end` - 1."""
    stride, n_rounds = args.source_stride, args.n_rounds
    source = args.source + token * stride
    if simd.many_registers(isa):
        while end - token >= 6:
            multiply_unit(element, isa, 6, first, second, source, stride, n_rounds, sums)
            write_plain(args, unit, token, 6, sums, 6)
            token, source = token + 6, source + 6 * stride
        if end - token >= 4:
            multiply_unit(element, isa, 4, first, second, source, stride, n_rounds, sums)
            write_plain(args, unit, token, 4, sums, 4)
            token, source = token + 4, source + 4 * stride
    else:
        while end - token >= 3:
            multiply_unit(element, isa, 3, first, second, source, stride, n_rounds, sums)
            write_plain(args, unit, token, 3, sums, 3)
            token, source = token + 3, source + 3 * stride
    if end - token >= 2:
        multiply_unit(element, isa, 2, first, second, source, stride, n_rounds, sums)
        write_plain(args, unit, token, 2, sums, 2)
        token, source = token + 2, source + 2 * stride
    if end > token:
        multiply_unit(element, isa, 1, first, second, source, stride, n_rounds, sums)
        write_plain(args, unit, token, 1, sums, 1)


def product(element: str, isa: str) -> Callable[..., None]:
    """The kernel for panels of that element type, and for as many registers as an instruction set has."""
    is_narrow = element != "f32"

    def product_float(pointer, worker, work_split):
        args = arguments_at(pointer)
        count, wide, beside = simd.load_int64(args.count), np.int64(0), args.n_rounds * FLOAT_COLUMNS * 64
        sums = simd.stack_space(SUMS_BYTES)
        own, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
        end = 0
        if count >= rounded.MANY and args.rows == 0:
            own, stop = 0, args.n_units
            end, count = share_of_tokens(work_split, worker, 0, count)
            if is_narrow and args.scratch != 0:
                wide = args.scratch + worker * args.scratch_stride
        while end < count:
            block, end = end, min(count, end + args.block_tokens)
            for unit in range(own, stop):
                first = args.weights + 2 * unit * args.panel_bytes
                second = first + args.panel_bytes
                if wide != 0:
                    widen(element, first, 2 * args.n_rounds * FLOAT_COLUMNS, wide)
                    multiply_block("f32", isa, args, unit, wide, wide + beside, block, end, sums)
                else:
                    multiply_block(element, isa, args, unit, first, second, block, end, sums)

    return product_float
