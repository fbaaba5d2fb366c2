"""Products of float panels with float32 activations in tile registers (AMX), for many tokens (`kernels.bfloats`).

Memory: as for `kernels.matmul.floats`. Workers share the tokens. The parts of a block of tokens lie in scratch, for as
many columns as the second cache has room for, and are multiplied by one unit after another. Tile registers leave vector
registers idle, and a core looks ahead a few hundred instructions: so, block by block of columns, the next unit is split
and the results of the last tokens are written while others are multiplied. Scratch of a worker, PRODUCT_SCRATCH_BYTES:
sums float32[2, 2 tiles of tokens, 2 panels, 16, 16], two units, activations of a block of tokens. NumPy twin: source @
weights.T, within 2^-15 of the sum of all magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable

from edgeinfer.backends.cpu.kernels.bfloats import (
    multiply,
    release_tiles,
    shape_tiles,
    split_pair,
    split_row,
    store_sums,
    zero_pairs,
    zero_row,
    zero_sums,
)
from edgeinfer.backends.cpu.kernels.matmul.integers import share_of_tokens
from edgeinfer.backends.cpu.layout.bfloats import (
    BLOCK_BYTES,
    COLUMNS,
    MOST_BLOCKS,
    MOST_TOKENS,
    PAIRS,
    ROWS,
    STEP_TOKENS,
    SUMS_BYTES,
    TILE_BYTES,
    UNIT_BYTES,
)
from edgeinfer.backends.cpu.layout.panels import FLOAT_COLUMNS
from edgeinfer.backends.cpu.layout.records import FLOAT_PRODUCT
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(FLOAT_PRODUCT)


@inline
def even_part(count, most):
    """The size of parts of `count`, all but the last as large, none larger than `most`."""
    n_parts = (count + most - 1) // most
    return (count + n_parts - 1) // n_parts


@inline
def split_tokens(args, first, stop, block, n_blocks, to):
    """Write the parts of some blocks of tokens `first` to `stop` - 1; zeros fill up the last tiles."""
    for token in range(first, first + (stop - first + STEP_TOKENS - 1) // STEP_TOKENS * STEP_TOKENS):
        place = token - first
        row = to + place // ROWS * n_blocks * BLOCK_BYTES + place % ROWS * 64
        if token < stop:
            split_row(args.source + token * args.source_stride + block * 4 * COLUMNS, n_blocks, row)
        else:
            zero_row(n_blocks, row)


@inline
def split_columns(element, panels, panel_bytes, pair_bytes, beside, at, count, n_pairs, to):
    """Write the parts of `count` pairs of columns from the pair `at` of the first panel on, which has `n_pairs`.

    After it comes the second one. Returns the next pair.
    """
    for pair in range(at, min(at + count, 2 * n_pairs)):
        source, place, out = panels, pair, to
        if pair >= n_pairs:
            source, place, out = panels + panel_bytes, pair - n_pairs, to + beside
        out += (place >> 4) * BLOCK_BYTES + (place & 15) * 64
        split_pair(element, source + place * pair_bytes, pair_bytes >> 1, out)
    return at + count


@inline
def clear_ends(n_pairs, n_blocks, weights):
    """Write zeros in place of columns that the panels of two units lack."""
    for half in range(4):
        to = weights + half // 2 * UNIT_BYTES + half % 2 * n_blocks * BLOCK_BYTES
        zero_pairs(n_pairs, n_blocks * PAIRS, to)


@inline
def write_rows(stride, first, stop, sums, out, bias, adds):
    """Write both panels' results of rows `first` to `stop` - 1 of two tiles of tokens; with `adds`, add them."""
    first_bias, second_bias = simd.load(bias), simd.load(bias + 64)
    for row in range(first, stop):
        source, to = sums + (row >> 4) * BLOCK_BYTES + (row & 15) * 64, out + row * stride
        left, right = simd.load(source), simd.load(source + TILE_BYTES)
        left, right = simd.add(left, first_bias), simd.add(right, second_bias)
        if adds:
            left, right = simd.add(left, simd.load(to)), simd.add(right, simd.load(to + 64))
        simd.store(to, left)
        simd.store(to + 64, right)


@inline
def ask_for_rows(stride, first, stop, out):
    """Prefetch what `write_rows` will write to."""
    for row in range(first, stop):
        simd.prefetch(out + row * stride)
        simd.prefetch(out + row * stride + 64)


@inline
def multiply_chunk(element, args, first, end, start, stop, scratch, zeros):
    """Multiply blocks `start` to `stop` - 1 of the columns of tokens `first` to `end` - 1 by all units.

    `zeros`: in place of the bias after the first blocks, whose results are added to.
    """
    sums, weights, activations = scratch
    n_blocks, n_units, stride, panel_bytes = stop - start, args.n_units, args.out_stride, args.panel_bytes
    n_columns = args.n_rounds * FLOAT_COLUMNS
    pair_bytes, n_pairs = 2 * panel_bytes // n_columns, min(n_blocks * PAIRS, n_columns // 2 - start * PAIRS)
    panels, beside = args.weights + start * PAIRS * pair_bytes, n_blocks * BLOCK_BYTES
    n_steps = (end - first + STEP_TOKENS - 1) // STEP_TOKENS
    per_block, rows = (2 * PAIRS + n_steps - 1) // n_steps, (STEP_TOKENS + n_blocks - 1) // n_blocks
    adds = start > 0 or args.accumulate != 0
    own, other = weights, weights + UNIT_BYTES
    clear_ends(n_pairs, n_blocks, weights)
    split_columns(element, panels, panel_bytes, pair_bytes, beside, 0, 2 * n_pairs, n_pairs, own)
    split_tokens(args, first, end, start, n_blocks, activations)
    place, last_out, last_stop, last_bias = sums, args.out, 0, zeros
    for unit in range(n_units):
        panels, at, bias = panels + 2 * panel_bytes, 0, zeros
        if unit + 1 == n_units:
            at = 2 * n_pairs
        if start == 0:
            bias = args.bias + unit * args.bias_stride
        x, out = activations, args.out + 128 * unit + first * stride
        for token in range(first, end, STEP_TOKENS):
            stop_row, row = min(STEP_TOKENS, end - token), 0
            zero_sums()
            for block in range(0, beside, BLOCK_BYTES):
                multiply(element, x + block, beside, own + block, beside)
                at = split_columns(element, panels, panel_bytes, pair_bytes, beside, at, per_block, n_pairs, other)
                write_rows(stride, row, min(row + rows, last_stop), place, last_out, last_bias, adds)
                ask_for_rows(stride, row, min(row + rows, stop_row), out)
                row += rows
            place = sums + (SUMS_BYTES - (place - sums))
            store_sums(place)
            last_out, last_stop, last_bias = out, stop_row, bias
            x, out = x + 2 * beside, out + STEP_TOKENS * stride
        own, other = other, own
    write_rows(stride, 0, last_stop, place, last_out, last_bias, adds)


def product(element: str) -> Callable[..., None]:
    """The kernel for panels of that element type."""

    def product_split(pointer, worker, work_split):
        args = arguments_at(pointer)
        n_blocks = (args.n_rounds * FLOAT_COLUMNS + COLUMNS - 1) // COLUMNS
        chunk = even_part(n_blocks, MOST_BLOCKS)
        end, whole = share_of_tokens(work_split, worker, 0, simd.load_int64(args.count))
        if end >= whole:
            return
        size = (even_part(whole - end, MOST_TOKENS) + STEP_TOKENS - 1) // STEP_TOKENS * STEP_TOKENS
        sums = args.scratch + worker * args.scratch_stride
        weights = sums + 2 * SUMS_BYTES
        scratch = sums, weights, weights + 2 * UNIT_BYTES
        zeros = simd.stack_space(128)
        simd.store(zeros, simd.splat(0.0))
        simd.store(zeros + 64, simd.splat(0.0))
        shape_tiles()
        while end < whole:
            first, end, stop = end, min(whole, end + size), 0
            while stop < n_blocks:
                start, stop = stop, min(n_blocks, stop + chunk)
                multiply_chunk(element, args, first, end, start, stop, scratch, zeros)
        release_tiles()

    return product_split
