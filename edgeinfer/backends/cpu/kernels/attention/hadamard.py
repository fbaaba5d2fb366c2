"""Rotating heads by an orthonormal Hadamard matrix, before keys, values and queries are rounded, and results after.

Memory: float32[padded], 16 to a vector; columns from the head's width on must be zeros and stay so. Blocks of the
largest power of two that divides the width are rotated, so the matrix is its own inverse. The NumPy twin, bit for bit,
is `backends.meanings.rotated`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.meanings import MOST_ROTATED
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline


@intrinsic(prefer_literal=True)
def with_neighbours(context, value, distance):
    """In lanes i and i + distance of each pair: their sum, and the first less the second."""
    step = distance.literal_value

    def generate(context, builder, signature, values):
        undefined = ir.Constant(emit.F32S, ir.Undefined)
        others = ir.Constant(emit.I32S, [lane ^ step for lane in range(LANES)])
        signs = ir.Constant(emit.F32S, [-1.0 if lane & step else 1.0 for lane in range(LANES)])
        swapped = builder.shuffle_vector(values[0], undefined, others)
        return emit.fma(builder, values[0], signs, swapped)

    return simd.FLOATS(simd.FLOATS, distance), generate


@inline
def rotate(source, padded, width, scale, target):
    """Write a head times `scale`, rotated; `target` may be `source`."""
    block = min(width & -width, MOST_ROTATED)
    size, factor = simd.splat(scale), simd.splat(np.float32(1.0) / simd.sqrt(np.float32(block)))
    for at in range(0, padded * 4, 64):
        value = simd.mul(simd.mul(simd.load(source + at), size), factor)
        if block > 1:
            value = with_neighbours(value, 1)
        if block > 2:
            value = with_neighbours(value, 2)
        if block > 4:
            value = with_neighbours(value, 4)
        if block > 8:
            value = with_neighbours(value, 8)
        simd.store(target + at, value)
    step = 64
    while step < block * 4:
        for start in range(0, padded * 4, 2 * step):
            for at in range(target + start, target + start + step, 64):
                first, second = simd.load(at), simd.load(at + step)
                simd.store(at, simd.add(first, second))
                simd.store(at + step, simd.sub(first, second))
        step *= 2
