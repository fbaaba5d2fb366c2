"""Down products of active neurons alone: out[t, row] (+)= sum over neurons of their columns * hidden (+ bias).

Memory: COLUMN_PRODUCT; columns int64[n_chosen] of addresses and neurons int32[n_chosen] in order, of some blocks of 32
neurons; activations as in `kernels.matmul.activations`, of these blocks alone; sums float32[n, sums_stride / 4], which
carry over from calls for earlier blocks; out float32[n, out_stride / 4], written by the call for the last blocks.
Workers share runs of 32 rows, as products of whole matrices do, and get the same bits. NumPy twin: dequantised columns
times rounded hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.matmul.activations import tile_of, tiled_tokens
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.panels import BLOCK, UNIT_ROWS
from edgeinfer.backends.cpu.neurons.kernels.column_panels import ADDRESSES_BYTES, PANELS_BYTES, add_panels, build_panels
from edgeinfer.backends.cpu.neurons.kernels.column_sums import add_block
from edgeinfer.backends.cpu.neurons.kernels.layout import CODE_BITS, ColumnForm
from edgeinfer.backends.cpu.neurons.kernels.records import COLUMN_PRODUCT
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

columns_at = simd.record_at(COLUMN_PRODUCT)
SCALE_BYTES = 2 * UNIT_ROWS
FEWEST_FOR_PANELS = 4
"""From this number of tokens on, columns are turned into panels first."""


@inline
def neurons_until(args, n_chosen, at, neuron):
    """The first of the chosen neurons from `at` on that is not below `neuron`."""
    while at < n_chosen and simd.load_int32(args.neurons + 4 * at) < neuron:
        at += 1
    return at


@inline
def clear_units(args, count, first, stop):
    """Set the sums to zero."""
    for token in range(count):
        for part in range(2 * first, 2 * stop):
            simd.store(args.sums + token * args.sums_stride + 64 * part, simd.splat(np.float32(0.0)))


@inline
def write_units(args, count, first, stop, joins):
    """Write sums with bias and, if accumulating, the previous values; `joins`: add two chains, even and odd neurons."""
    for token in range(count):
        for part in range(2 * first, 2 * stop):
            at = args.sums + token * args.sums_stride + 64 * part
            value = simd.load(at)
            if joins != 0:
                value = simd.add(value, simd.load(at + args.sums_stride // 2))
            value = simd.add(value, simd.load(args.bias + part // 2 * args.bias_stride + part % 2 * 64))
            out = args.out + token * args.out_stride + 64 * part
            if args.accumulate != 0:
                value = simd.add(value, simd.load(out))
            simd.store(out, value)


def column_product(key: str, isa: str) -> Callable[..., None]:
    """The kernel for integer columns of that form and an instruction set."""
    unit_bytes = UNIT_ROWS * CODE_BITS[ColumnForm.parse(key).code] // 8

    def columns(pointer, worker, work_split):
        args = columns_at(pointer)
        count, n_chosen = simd.load_int64(args.count), simd.load_int64(args.n_chosen)
        first, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
        activations, n_tiled = args.activations + worker * args.activations_stride, tiled_tokens(count) * args.tiled
        if args.is_first != 0:
            clear_units(args, count, first, stop)
        addresses, panels = simd.stack_space(ADDRESSES_BYTES), simd.stack_space(PANELS_BYTES)
        most_units, end = (4 if count <= 2 else 2), 0
        for block in range(args.n_blocks):
            begin, end = end, neurons_until(args, n_chosen, end, BLOCK * (args.first_block + block + 1))
            listed, numbers, n_here = args.columns + 8 * begin, args.neurons + 4 * begin, end - begin
            unit = first
            if count >= FEWEST_FOR_PANELS:
                list_addresses(listed, numbers, n_here, addresses)
                for _ in range(first, stop):
                    if n_here > 0:
                        build_panels(key, addresses, unit * unit_bytes, panels)
                    add_unit(args, key, isa, count, n_tiled, block, unit, activations, panels)
                    unit += 1
            while unit < stop:
                size = most_units if stop - unit >= most_units else 1
                shared = (args.first_block + block) * args.scales_stride + unit * SCALE_BYTES
                goal = args.sums + unit * 4 * UNIT_ROWS, args.sums_stride, args.scales + shared, args.minima + shared
                chosen = listed, numbers, n_here, min(n_here, n_chosen - end)
                x = activations + block * count * act.RECORD_BYTES
                add_tokens(key, count, size, chosen, unit * unit_bytes, x, goal)
                unit += size
        if args.is_last != 0:
            write_units(args, count, first, stop, 0)

    return columns


@inline
def list_addresses(columns, neurons, count, addresses):
    """int64[32] addresses of a block's columns, the first one's for a neuron that is left out."""
    for place in range(BLOCK):
        simd.store_int64(addresses + 8 * place, simd.load_int64(columns) if count > 0 else 0)
    for index in range(count):
        place = simd.load_int32(neurons + 4 * index) % BLOCK
        simd.store_int64(addresses + 8 * place, simd.load_int64(columns + 8 * index))


@inline
def add_unit(args, key, isa, count, n_tiled, block, unit, activations, panels):
    """Add the products of a block's panels for 32 rows of all tokens."""
    shared = (args.first_block + block) * args.scales_stride + unit * SCALE_BYTES
    token = 0
    while token < count:
        _, tile = tile_of(token, count, n_tiled)
        x = activations + (token * args.n_blocks + block * tile) * act.RECORD_BYTES
        own = args.sums + token * args.sums_stride + unit * 4 * UNIT_ROWS
        if tile == 3:
            add_panels(key, isa, 3, panels, x, (own, args.sums_stride, args.scales + shared, args.minima + shared))
        elif tile == 2:
            add_panels(key, isa, 2, panels, x, (own, args.sums_stride, args.scales + shared, args.minima + shared))
        elif tile == 1:
            add_panels(key, isa, 1, panels, x, (own, args.sums_stride, args.scales + shared, args.minima + shared))
        for _ in range(tile // 4):
            add_panels(key, isa, 4, panels, x, (own, args.sums_stride, args.scales + shared, args.minima + shared))
            x, own = x + 4 * act.RECORD_BYTES, own + 4 * args.sums_stride
        token += tile


@inline
def add_tokens(key, n_tokens, size, chosen, row_at, x, sums):
    """`add_block` for all tokens and units: one or two tokens take four units, three take two, where possible."""
    if n_tokens == 1:
        if size == 4:
            add_block(key, 1, 4, chosen, row_at, x, sums)
        else:
            add_block(key, 1, 1, chosen, row_at, x, sums)
    elif n_tokens == 2:
        if size == 4:
            add_block(key, 2, 4, chosen, row_at, x, sums)
        else:
            add_block(key, 2, 1, chosen, row_at, x, sums)
    elif size == 2:
        add_block(key, 3, 2, chosen, row_at, x, sums)
    else:
        add_block(key, 3, 1, chosen, row_at, x, sums)
