"""Products of integer panels with int8 activations: out[t, row] (+)= sum over columns of weight * activation.

Memory: weights uint8[n_panels, panel_bytes] (`panels.IntegerPanel`), activations as in `kernels.matmul.activations`,
out float32[n, out_stride / 4]. A unit is two panels: two neighbours, which give 32 columns of the output, or one of a
gate and one of an up matrix, which give 16: curve(gate) * up. Workers share units, or the tokens if there are many:
then no worker is near the data that another one wrote. Tokens are taken in blocks whose activations stay in cache; each
block goes through one unit after another. The NumPy twin is dequantised weights times `reference.round_activations`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.matmul.activations import tiled_tokens
from edgeinfer.backends.cpu.kernels.matmul.tiles import multiply, multiply_two_tiles
from edgeinfer.backends.cpu.kernels.matmul.transcoding import transcode
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.backends.cpu.layout.panels import IntegerPanel, plain_panel
from edgeinfer.backends.cpu.layout.records import (
    A_UNIT,
    GELU,
    GELU_QUICK,
    GELU_TANH,
    PLAIN,
    PRODUCT,
    RELU,
    RELU2,
    SIGMOID,
    SOFTPLUS,
)
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline
from edgeinfer.jit.targets import target

arguments_at = simd.record_at(PRODUCT)
SUMS_BYTES = 2 * 8 * 64
"""Bytes of the sums of the largest tile: two panels, eight tokens."""


@inline
def share_of_tokens(work_split, worker, first, count):
    """A worker's tokens from `first` on: whole tiles, and the last worker takes the rest."""
    n_tiles = (count - first + act.TILE - 1) // act.TILE
    start, stop = share_start(work_split, worker, n_tiles), share_start(work_split, worker + 1, n_tiles)
    return first + start * act.TILE, min(count, first + stop * act.TILE)


@inline
def bytes_ahead(args, work_split, worker, unit, stop):
    """Bytes from a unit to what its worker reads soon, most often the next unit, here or in the next product.

    0: do not prefetch.
    """
    if args.ahead != A_UNIT:
        return args.ahead
    if unit + 1 < stop or args.next == 0:
        return args.unit_bytes
    following = arguments_at(args.next)
    first = following.weights + share_start(work_split, worker, following.n_units) * following.unit_bytes
    return first - args.weights - unit * args.unit_bytes


@inline
def write_plain(args, unit, token, n_tokens, sums, apart):
    """Write both panels' rows of some tokens, with bias and, if accumulating, the previous values.

    `sums`: float32[panels, apart, 16].
    """
    bias = args.bias + unit * args.bias_stride
    first_bias, second_bias = simd.load(bias), simd.load(bias + 64)
    for place in range(n_tokens):
        row = token + place
        if args.rows != 0:
            row = simd.load_int32(args.rows + 4 * row)
        out = args.out + 128 * unit + row * args.out_stride
        first = simd.add(simd.load(sums + 64 * place), first_bias)
        second = simd.add(simd.load(sums + 64 * (apart + place)), second_bias)
        if args.accumulate != 0:
            first, second = simd.add(first, simd.load(out)), simd.add(second, simd.load(out + 64))
        simd.store(out, first)
        simd.store(out + 64, second)


@inline
def activated(curve, gate):
    """The activation of a gate."""
    if curve == RELU:
        return simd.activated("relu", gate)
    if curve == GELU:
        return simd.activated("gelu", gate)
    if curve == SIGMOID:
        return simd.activated("sigmoid", gate)
    if curve == SOFTPLUS:
        return simd.activated("softplus", gate)
    if curve == GELU_QUICK:
        return simd.activated("gelu_quick", gate)
    if curve == RELU2:
        return simd.activated("relu2", gate)
    if curve == GELU_TANH:
        return simd.activated("gelu_tanh", gate)
    return simd.activated("silu", gate)


@inline
def write_gated(args, unit, token, n_tokens, sums, apart):
    """Write curve(gate) * up of some tokens."""
    out = args.out + 64 * unit + token * args.out_stride
    for place in range(n_tokens):
        gate, up = simd.load(sums + 64 * place), simd.load(sums + 64 * (apart + place))
        simd.store(out, simd.mul(activated(args.curve, gate), up))
        out += args.out_stride


@inline
def write(args, unit, token, n_tokens, sums, apart):
    """Compute and write the results of a unit for some tokens; `sums`: float32[panels, apart, 16]."""
    if args.curve == PLAIN:
        write_plain(args, unit, token, n_tokens, sums, apart)
    else:
        write_gated(args, unit, token, n_tokens, sums, apart)


def product(key: str, isa: str) -> Callable[..., None]:
    """The kernel for an integer panel and an instruction set.

    Kernels close over names only, so that a kernel's own name shows what it was made with.
    """
    if IntegerPanel.parse(key).book in BOOKS:
        return book_product(key, isa)
    return (wide_product if target(isa).vectors >= 32 else narrow_product)(key, isa)


def wide_product(key: str, isa: str) -> Callable[..., None]:
    """For many registers: one panel times eight tokens, two times four or fewer."""

    def product(pointer, worker, work_split):
        args = arguments_at(pointer)
        count, token_bytes, second = simd.load_int64(args.count), args.n_blocks * act.RECORD_BYTES, args.second
        activations, n_records = args.activations + worker * args.activations_stride, args.n_records
        own, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
        sums = simd.stack_space(SUMS_BYTES)
        end = tiled_tokens(count) * args.tiled
        if count - end >= act.MANY and args.rows == 0:
            own, stop = 0, args.n_units
            end, count = share_of_tokens(work_split, worker, end, count)
        while end < count:
            block, end = end, min(count, end + args.block_tokens)
            for unit in range(own, stop):
                first = args.weights + unit * args.unit_bytes
                token, x = block, activations + block * token_bytes
                ahead = bytes_ahead(args, work_split, worker, unit, stop)
                while end - token >= 8:
                    for half in range(2):
                        panels, to = first + half * second, sums + half * 8 * 64
                        multiply(key, isa, 8, 8, (panels,), x, n_records, ahead, to)
                    write(args, unit, token, np.int64(8), sums, np.int64(8))
                    token, x, ahead = token + 8, x + 8 * token_bytes, 0
                if end - token > 5:
                    rest, n_rest = x + 4 * token_bytes, end - token - 4
                    for half in range(2):
                        panels, to = first + half * second, sums + half * 8 * 64
                        multiply_two_tiles(key, isa, (panels,), x, rest, n_rest, n_records, ahead, to)
                    write(args, unit, token, end - token, sums, np.int64(8))
                    token = end
                elif end - token >= 4:
                    multiply(key, isa, 4, 4, (first, first + second), x, n_records, ahead, sums)
                    write(args, unit, token, np.int64(4), sums, np.int64(4))
                    token, x, ahead = token + 4, x + 4 * token_bytes, 0
                if end - token == 3:
                    multiply(key, isa, 3, 3, (first, first + second), x, n_records, ahead, sums)
                elif end - token == 2:
                    multiply(key, isa, 2, 2, (first, first + second), x, n_records, ahead, sums)
                elif end - token == 1:
                    multiply(key, isa, 1, 1, (first, first + second), x, n_records, ahead, sums)
                if end > token:
                    write(args, unit, token, end - token, sums, end - token)

    return product


def narrow_product(key: str, isa: str) -> Callable[..., None]:
    """For few registers: one panel times four tokens or fewer, two times one."""

    def product(pointer, worker, work_split):
        args = arguments_at(pointer)
        count, token_bytes, second = simd.load_int64(args.count), args.n_blocks * act.RECORD_BYTES, args.second
        activations, n_records = args.activations + worker * args.activations_stride, args.n_records
        sums = simd.stack_space(SUMS_BYTES)
        own, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
        end = 0
        while end < count:
            block, end = end, min(count, end + args.block_tokens)
            for unit in range(own, stop):
                first = args.weights + unit * args.unit_bytes
                token, x = block, activations + block * token_bytes
                ahead = bytes_ahead(args, work_split, worker, unit, stop)
                while end - token >= 8:
                    for part in range(4):
                        panels, at = first + part // 2 * second, x + part % 2 * 4 * act.RECORD_BYTES
                        multiply(key, isa, 4, 8, (panels,), at, n_records, 0, sums + part * 4 * 64)
                    write(args, unit, token, np.int64(8), sums, np.int64(8))
                    token, x, ahead = token + 8, x + 8 * token_bytes, 0
                if end - token >= 4:
                    for half in range(2):
                        panels, to = first + half * second, sums + half * 4 * 64
                        multiply(key, isa, 4, 4, (panels,), x, n_records, ahead, to)
                    write(args, unit, token, np.int64(4), sums, np.int64(4))
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
                    write(args, unit, token, end - token, sums, end - token)

    return product


def book_product(key: str, isa: str) -> Callable[..., None]:
    """For codes that are entries of a book: for several tokens panels are written out as bytes first."""
    panel = IntegerPanel.parse(key)
    plain, pairs = plain_panel(panel).key, panel.record_pairs
    pair_bytes = plain_panel(panel).record_bytes
    tile = 8 if target(isa).vectors >= 32 else 4  # tokens whose sums fit in the registers

    def product(pointer, worker, work_split):
        args = arguments_at(pointer)
        count, token_bytes, second = simd.load_int64(args.count), args.n_blocks * act.RECORD_BYTES, args.second
        activations, n_records = args.activations + worker * args.activations_stride, args.n_records
        sums, scratch = simd.stack_space(SUMS_BYTES), args.unpacked + worker * args.unpacked_stride
        own, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
        n_pairs, end = n_records * pairs, tiled_tokens(count) * args.tiled
        while end < count:
            block, end = end, min(count, end + args.block_tokens)
            for unit in range(own, stop):
                first = args.weights + unit * args.unit_bytes
                token, x = block, activations + block * token_bytes
                if end - token >= 4:
                    transcode(key, isa, first, n_records, scratch)
                    transcode(key, isa, first + second, n_records, scratch + n_pairs * pair_bytes)
                    while end - token >= 8:
                        for part in range(16 // tile):
                            panels = scratch + part * tile // 8 * (n_pairs * pair_bytes)
                            at = x + part * tile % 8 * act.RECORD_BYTES
                            multiply(plain, isa, tile, 8, (panels,), at, n_pairs, 0, sums + part * tile * 64)
                        write(args, unit, token, np.int64(8), sums, np.int64(8))
                        token, x = token + 8, x + 8 * token_bytes
                    if end - token >= 4:
                        for half in range(2):
                            panels = scratch + half * n_pairs * pair_bytes
                            multiply(plain, isa, 4, 4, (panels,), x, n_pairs, 0, sums + half * 4 * 64)
                        write(args, unit, token, np.int64(4), sums, np.int64(4))
                        token, x = token + 4, x + 4 * token_bytes
                if end - token == 3:
                    multiply(key, isa, 3, 3, (first, first + second), x, n_records, 0, sums)
                elif end - token == 2:
                    multiply(key, isa, 2, 2, (first, first + second), x, n_records, 0, sums)
                elif end - token == 1:
                    multiply(key, isa, 1, 1, (first, first + second), x, n_records, 0, sums)
                if end > token:
                    write(args, unit, token, end - token, sums, end - token)

    return product
