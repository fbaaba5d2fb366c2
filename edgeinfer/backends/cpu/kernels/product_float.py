"""Products of float panels with float32 activations: out[t, row] (+)= sum over columns of weight * activation.

Memory: weights of float16, bfloat16 or float32 [n_panels, columns, 16] (`panels.FloatPanel`), source
float32[n, source_stride / 4] (zero beyond its width), out float32[n, out_stride / 4]. Column c adds to chain c mod 4;
the chains join as (0 + 1) + (2 + 3), the same for any tile size. Its NumPy twin is source @ weights.T.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from edgeinfer.backends.cpu import emit, simd
from edgeinfer.backends.cpu.jit import Kernel
from edgeinfer.backends.cpu.kernels.crew import share_start
from edgeinfer.backends.cpu.kernels.product import finish_tile
from edgeinfer.backends.cpu.panels import FLOAT_COLUMNS, PANEL_ROWS, FloatPanel

ARGUMENTS = np.dtype(
    [
        ("weights", "i8"),
        ("panel_bytes", "i8"),
        ("n_panels", "i8"),
        ("n_rounds", "i8"),  # columns / 4
        ("source", "i8"),
        ("source_stride", "i8"),  # bytes between tokens
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_panels * 16], or float32[16] zeros with stride 0
        ("bias_stride", "i8"),  # bytes between panels
    ]
)

LOADS = {"f16": emit.load_halves, "bf16": emit.load_bfloats, "f32": emit.load_floats}


@intrinsic(prefer_literal=True)
def multiply_tile(context, element, tile, weights, source, source_stride, n_rounds, out, stride, accumulate, bias):
    """One panel times `tile` tokens, the loop over all columns included."""
    load, size = LOADS[element.literal_value], tile.literal_value
    column_bytes = PANEL_ROWS * FloatPanel(element.literal_value).element_bytes

    def generate(context, builder, signature, values):
        _, _, weights, source, source_stride, n_rounds, out, stride, accumulate, bias = values
        tokens = [builder.add(source, builder.mul(source_stride, emit.integer(token))) for token in range(size)]

        def body(index, sums):
            columns = builder.add(weights, builder.mul(index, emit.integer(FLOAT_COLUMNS * column_bytes)))
            at = builder.mul(index, emit.integer(4 * FLOAT_COLUMNS))
            results = list(sums)
            for chain in range(FLOAT_COLUMNS):
                column = load(builder, columns, chain * column_bytes)
                for token in range(size):
                    value = emit.broadcast_float(builder, builder.add(tokens[token], at), 4 * chain)
                    place = token * FLOAT_COLUMNS + chain
                    results[place] = emit.fma(builder, column, value, sums[place])
            return results

        sums = emit.loop(builder, n_rounds, [emit.repeated(emit.F32S, 0.0)] * (size * FLOAT_COLUMNS), body)
        joined = []
        for token in range(size):
            first, second, third, fourth = sums[token * FLOAT_COLUMNS : (token + 1) * FLOAT_COLUMNS]
            joined.append(builder.fadd(builder.fadd(first, second), builder.fadd(third, fourth)))
        finish_tile(builder, joined, out, stride, accumulate, bias)
        return context.get_dummy_value()

    return types.void(element, tile, *[types.intp] * 8), generate


def product_float_kernel(panel: FloatPanel) -> Kernel:
    """The kernel for a float panel."""
    element = panel.element

    def product(pointer, worker, crew):
        args = carray(pointer, 1)[0]
        count = simd.load_int64(args.count)
        rounds, stride, accumulate, source_stride = args.n_rounds, args.out_stride, args.accumulate, args.source_stride
        for panel in range(share_start(crew, worker, args.n_panels), share_start(crew, worker + 1, args.n_panels)):
            weights = args.weights + panel * args.panel_bytes
            bias = args.bias + panel * args.bias_stride
            out = args.out + panel * 64
            source = args.source
            left = count
            while left >= 4:
                multiply_tile(element, 4, weights, source, source_stride, rounds, out, stride, accumulate, bias)
                left -= 4
                out += 4 * stride
                source += 4 * source_stride
            while left >= 1:
                multiply_tile(element, 1, weights, source, source_stride, rounds, out, stride, accumulate, bias)
                left -= 1
                out += stride
                source += source_stride

    return Kernel(f"product-{element}", product, ARGUMENTS)
