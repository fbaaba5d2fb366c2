"""Products of integer panels with int8 activations: out[t, row] (+)= sum over columns of weight * activation.

Memory: weights uint8[n_panels, panel_bytes] (`panels.IntegerPanel`), activations as in `kernels.activations`, out
float32[n, out_stride / 4]. A unit is two panels: two neighbours, which give 32 columns of the output, or one of a
gate and one of an up matrix, which give 16: curve(gate) * up. Workers share units. Tokens are taken in blocks whose
activations stay in cache, in a block unit after unit. Its NumPy twin is dequantised weights times
`reference.round_activations`.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
from numba import carray

from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import Kernel, inline
from edgeinfer.backends.cpu.kernels import activations as act
from edgeinfer.backends.cpu.kernels.crew import share_start
from edgeinfer.backends.cpu.kernels.tiles import multiply
from edgeinfer.backends.cpu.panels import IntegerPanel
from edgeinfer.backends.cpu.targets import target

ARGUMENTS = np.dtype(
    [
        ("weights", "i8"),
        ("unit_bytes", "i8"),  # bytes from a unit's first panel to the next unit's
        ("second", "i8"),  # bytes from a unit's first panel to its second
        ("n_units", "i8"),
        ("n_records", "i8"),
        ("n_blocks", "i8"),  # blocks of 32 columns of a panel, padding included
        ("activations", "i8"),
        ("activations_stride", "i8"),  # bytes between the copies of two workers, 0: they share one
        ("block_tokens", "i8"),  # tokens whose activations stay in cache, a multiple of 8
        ("ahead", "i8"),  # 1: while a unit is read, the next one is asked for
        ("next", "i8"),  # address of the arguments of the product after this one, asked for at the end; 0: none
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_units, 32], or float32[32] zeros with stride 0
        ("bias_stride", "i8"),  # bytes between units
        ("curve", "i8"),  # one of CURVES; bias and accumulate are for PLAIN only
    ]
)
arguments_at = simd.record_pointer(numba.from_dtype(ARGUMENTS))
PLAIN, SILU, GELU_TANH = range(3)
CURVES = {"silu": SILU, "gelu_tanh": GELU_TANH}
SUMS_BYTES = 2 * 8 * 64
"""Sums of the largest tile: two panels, eight tokens."""


@inline
def bytes_ahead(args, crew, worker, unit, n_units, stop):
    """Bytes from a unit to what its worker reads `n_units` later, here or in the next product; 0: do not ask."""
    if args.ahead == 0:
        return 0
    if unit + n_units < stop or args.next == 0:
        return n_units * args.unit_bytes
    following = carray(arguments_at(args.next), 1)[0]
    first = following.weights + share_start(crew, worker, following.n_units) * following.unit_bytes
    return first - args.weights - unit * args.unit_bytes


@inline
def write_plain(args, unit, token, n_tokens, sums):
    """Both panels' rows of some tokens, with bias and what was there before."""
    bias = args.bias + unit * args.bias_stride
    first_bias, second_bias = simd.load(bias), simd.load(bias + 64)
    out = args.out + 128 * unit + token * args.out_stride
    for place in range(n_tokens):
        first = simd.add(simd.load(sums + 64 * place), first_bias)
        second = simd.add(simd.load(sums + 64 * (n_tokens + place)), second_bias)
        if args.accumulate != 0:
            first, second = simd.add(first, simd.load(out)), simd.add(second, simd.load(out + 64))
        simd.store(out, first)
        simd.store(out + 64, second)
        out += args.out_stride


@inline
def write_gated(args, unit, token, n_tokens, sums):
    """curve(gate) * up of some tokens."""
    out = args.out + 64 * unit + token * args.out_stride
    for place in range(n_tokens):
        gate, up = simd.load(sums + 64 * place), simd.load(sums + 64 * (n_tokens + place))
        gate = simd.silu(gate) if args.curve == SILU else simd.gelu_tanh(gate)
        simd.store(out, simd.mul(gate, up))
        out += args.out_stride


@inline
def write(args, unit, token, n_tokens, sums):
    """What a unit and some tokens give."""
    if args.curve == PLAIN:
        write_plain(args, unit, token, n_tokens, sums)
    else:
        write_gated(args, unit, token, n_tokens, sums)


def product_kernel(panel: IntegerPanel, isa_name: str) -> Kernel:
    """The kernel for an integer panel and an instruction set.

    Kernels close over names alone: Numba's cache would take functions among them for new ones in every process.
    """
    build = wide_product if target(isa_name).vectors >= 32 else narrow_product
    return Kernel(f"product-{panel.key}-{isa_name}", build(panel.key, isa_name), ARGUMENTS)


def wide_product(key: str, isa: str) -> Callable[..., None]:
    """For many registers: one panel times eight tokens, two times four or fewer, four times one."""

    def product(pointer, worker, crew):
        args = carray(pointer, 1)[0]
        count, token_bytes, second = simd.load_int64(args.count), args.n_blocks * act.RECORD_BYTES, args.second
        activations, n_records = args.activations + worker * args.activations_stride, args.n_records
        unit, stop = share_start(crew, worker, args.n_units), share_start(crew, worker + 1, args.n_units)
        sums = simd.stack_space(SUMS_BYTES)
        while count == 1 and stop - unit >= 2:
            first = args.weights + unit * args.unit_bytes
            third, ahead = first + args.unit_bytes, bytes_ahead(args, crew, worker, unit, 2, stop)
            panels = (first, first + second, third, third + second)
            multiply(key, isa, 1, 1, panels, activations, n_records, ahead, sums)
            write(args, unit, 0, 1, sums)
            write(args, unit + 1, 0, 1, sums + 2 * 64)
            unit += 2
        own = unit
        for block in range(0, count, args.block_tokens):
            end = min(count, block + args.block_tokens)
            for unit in range(own, stop):
                first = args.weights + unit * args.unit_bytes
                token, x, ahead = (
                    block,
                    activations + block * token_bytes,
                    bytes_ahead(args, crew, worker, unit, 1, stop),
                )
                while end - token >= 8:
                    for half in range(2):
                        panels, to = first + half * second, sums + half * 8 * 64
                        multiply(key, isa, 8, 8, (panels,), x, n_records, ahead, to)
                    write(args, unit, token, 8, sums)
                    token, x, ahead = token + 8, x + 8 * token_bytes, 0
                if end - token >= 4:
                    multiply(key, isa, 4, 4, (first, first + second), x, n_records, ahead, sums)
                    write(args, unit, token, 4, sums)
                    token, x, ahead = token + 4, x + 4 * token_bytes, 0
                if end - token == 3:
                    multiply(key, isa, 3, 3, (first, first + second), x, n_records, ahead, sums)
                elif end - token == 2:
                    multiply(key, isa, 2, 2, (first, first + second), x, n_records, ahead, sums)
                elif end - token == 1:
                    multiply(key, isa, 1, 1, (first, first + second), x, n_records, ahead, sums)
                if end > token:
                    write(args, unit, token, end - token, sums)

    return product


def narrow_product(key: str, isa: str) -> Callable[..., None]:
    """For few registers: one panel times four tokens or fewer, two times one."""

    def product(pointer, worker, crew):
        args = carray(pointer, 1)[0]
        count, token_bytes, second = simd.load_int64(args.count), args.n_blocks * act.RECORD_BYTES, args.second
        activations, n_records = args.activations + worker * args.activations_stride, args.n_records
        sums = simd.stack_space(SUMS_BYTES)
        own, stop = share_start(crew, worker, args.n_units), share_start(crew, worker + 1, args.n_units)
        for block in range(0, count, args.block_tokens):
            end = min(count, block + args.block_tokens)
            for unit in range(own, stop):
                first = args.weights + unit * args.unit_bytes
                token, x, ahead = (
                    block,
                    activations + block * token_bytes,
                    bytes_ahead(args, crew, worker, unit, 1, stop),
                )
                while end - token >= 8:
                    for part in range(4):
                        panels, at = first + part // 2 * second, x + part % 2 * 4 * act.RECORD_BYTES
                        multiply(key, isa, 4, 8, (panels,), at, n_records, ahead, sums + part * 4 * 64)
                    write(args, unit, token, 8, sums)
                    token, x, ahead = token + 8, x + 8 * token_bytes, 0
                if end - token >= 4:
                    for half in range(2):
                        panels, to = first + half * second, sums + half * 4 * 64
                        multiply(key, isa, 4, 4, (panels,), x, n_records, ahead, to)
                    write(args, unit, token, 4, sums)
                    token, x, ahead = token + 4, x + 4 * token_bytes, 0
                if end - token == 1:
                    multiply(key, isa, 1, 1, (first, first + second), x, n_records, ahead, sums)
                for half in range(2):
                    panels, to = first + half * second, sums + half * (end - token) * 64
                    if end - token == 3:
                        multiply(key, isa, 3, 3, (panels,), x, n_records, ahead, to)
                    elif end - token == 2:
                        multiply(key, isa, 2, 2, (panels,), x, n_records, ahead, to)
                if end > token:
                    write(args, unit, token, end - token, sums)

    return product
