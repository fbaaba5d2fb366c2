"""The up product of chosen neurons alone: hidden = activated gate * (row * activations), zeros for all others.

Memory: rows of integer panels one by one (`neurons.rows_of_panels`), by their addresses; sixteen of them are gathered
into a panel in scratch memory, so that the product is exactly that of whole matrices. Activations as in
`kernels.matmul.activations`; activated and hidden float32[n, stride / 4]. Neurons are in order; workers share them by
sixteens, and each clears the columns from its first neuron to the next worker's. NumPy twin: activated * (source @
rows.T + bias).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.matmul.activations import tile_of, tiled_tokens
from edgeinfer.backends.cpu.kernels.matmul.tiles import multiply
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, IntegerPanel
from edgeinfer.backends.cpu.neurons.kernels.layout import regions, row_record_bytes
from edgeinfer.backends.cpu.neurons.kernels.records import CHOSEN
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline

chosen_at = simd.record_at(CHOSEN)
SUMS_BYTES = 4 * 64
WORDS = ir.VectorType(emit.I32, 4)
TOGETHER = 4
"""Records gathered at a time, so that their words come in whole fours,"""
SHORT = 80
"""if a row has fewer bytes of a record than this."""


def word_of_rows(builder, rows, at):
    """int32[16]: a word of each row."""
    words = ir.Constant(emit.I32S, ir.Undefined)
    for lane, row in enumerate(rows):
        words = builder.insert_element(words, emit.load(builder, row, emit.I32, at), ir.Constant(emit.I32, lane))
    return words


def four_words_of_rows(builder, rows, at):
    """Four int32[16]: words of each row, transposed in blocks of four rows and four words."""
    quads = [emit.load(builder, row, WORDS, at) for row in rows]
    columns = []  # for each row of four, the words that the blocks have, side by side
    for place in range(4):
        low, high = (emit.join(builder, *(quads[place + 4 * block] for block in half)) for half in ((0, 1), (2, 3)))
        columns.append(emit.join(builder, low, high))

    def mixed(first, second, lanes):
        order = [lane + 4 * block if lane < 4 else lane + 12 + 4 * block for block in range(4) for lane in lanes]
        return builder.shuffle_vector(first, second, ir.Constant(emit.I32S, order))

    low = [mixed(columns[place], columns[place + 1], (0, 4, 1, 5)) for place in (0, 2)]
    high = [mixed(columns[place], columns[place + 1], (2, 6, 3, 7)) for place in (0, 2)]
    return [mixed(*pair, lanes) for pair in (low, high) for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))]


def store_word(builder, panel, number, word, record):
    """Store a word of each row where the panel's record has its numbers: one of 32 bits, two of 16 or four of 8."""
    for region in regions(panel):
        if number >= region.words:
            number -= region.words
            continue
        per_word, kind = 4 // region.size, ir.VectorType(ir.IntType(8 * region.size), PANEL_ROWS)
        for part in range(min(per_word, region.count - number * per_word)):
            moved = builder.lshr(word, emit.repeated(emit.I32S, 8 * region.size * part)) if part else word
            stored = moved if region.size == 4 else builder.trunc(moved, kind)
            at = region.at + (number * per_word + part) * PANEL_ROWS * region.size
            emit.store(builder, stored, record, at)
        return


@intrinsic(prefer_literal=True)
def gather_panel(context, panel_key, rows, n_records, out):
    """Gather a panel from the rows at int64[16] addresses."""
    panel = IntegerPanel.parse(panel_key.literal_value)

    def generate(context, builder, signature, values):
        _, rows, n_records, out = values
        addresses = [emit.load(builder, rows, emit.I64, 8 * lane, 8) for lane in range(PANEL_ROWS)]

        n_words, together = row_record_bytes(panel) // 4, TOGETHER if row_record_bytes(panel) < SHORT else 1

        def gather(first, n_here):
            """Gather some neighbouring records, four words at a time."""
            places = [builder.add(row, builder.mul(first, emit.integer(4 * n_words))) for row in addresses]
            target = builder.add(out, builder.mul(first, emit.integer(panel.record_bytes)))
            records = [builder.add(target, emit.integer(panel.record_bytes * number)) for number in range(n_here)]
            total = n_here * n_words
            for word in range(0, total, 4):
                if total - word >= 4:
                    found = four_words_of_rows(builder, places, 4 * word)
                else:
                    found = [word_of_rows(builder, places, 4 * each) for each in range(word, total)]
                for number, value in enumerate(found, word):
                    store_word(builder, panel, number % n_words, value, records[number // n_words])

        groups = builder.udiv(n_records, emit.integer(together))

        def group(index, carried):
            gather(builder.mul(index, emit.integer(together)), together)
            return []

        def single(index, carried):
            gather(builder.add(builder.mul(groups, emit.integer(together)), index), 1)
            return []

        emit.loop(builder, groups, [], group)
        if together > 1:
            emit.loop(builder, builder.urem(n_records, emit.integer(together)), [], single)
        return context.get_dummy_value()

    return types.void(panel_key, *[types.intp] * 3), generate


@inline
def column_of(args, n_chosen, panel):
    """Where the columns of a panel's neurons begin."""
    if panel == 0:
        return args.begin
    return args.end if PANEL_ROWS * panel >= n_chosen else simd.load_int32(args.neurons + 4 * PANEL_ROWS * panel)


@inline
def clear(args, count, begin, end):
    """Write zeros in the columns from `begin` to `end` - 1 of all rows."""
    for token in range(count):
        at, stop = args.out + token * args.out_stride + 4 * begin, args.out + token * args.out_stride + 4 * end
        while stop - at >= 64:
            simd.store(at, simd.splat(np.float32(0.0)))
            at += 64
        while at < stop:
            simd.store_float(at, np.float32(0.0))
            at += 4


@inline
def write_chosen(args, panel, n_chosen, token, n_tokens, sums):
    """Write activated * (sum + bias) of a panel's neurons."""
    first = PANEL_ROWS * panel
    for place in range(n_tokens):
        gates = args.activated + (token + place) * args.activated_stride
        out = args.out + (token + place) * args.out_stride
        for lane in range(min(PANEL_ROWS, n_chosen - first)):
            at = 4 * simd.load_int32(args.neurons + 4 * (first + lane))
            up = simd.load_float(sums + 64 * place + 4 * lane)
            if args.bias != 0:
                up += simd.load_float(args.bias + at)
            simd.store_float(out + at, simd.load_float(gates + at) * up)


def chosen_product(key: str, isa: str) -> Callable[..., None]:
    """The kernel for an integer panel and an instruction set."""

    def chosen(pointer, worker, work_split):
        args = chosen_at(pointer)
        count, n_chosen = simd.load_int64(args.count), simd.load_int64(args.n_chosen)
        n_records, n_tiled = args.n_records, tiled_tokens(count) * args.tiled
        activations, panels = args.activations + worker * args.activations_stride, (n_chosen + 15) // PANEL_ROWS
        first, stop = share_start(work_split, worker, panels), share_start(work_split, worker + 1, panels)
        if first < stop:
            clear(args, count, column_of(args, n_chosen, first), column_of(args, n_chosen, stop))
        elif panels == 0 and worker == 0:
            clear(args, count, args.begin, args.end)
        panel, sums = args.scratch + worker * args.scratch_stride, simd.stack_space(SUMS_BYTES)
        for number in range(first, stop):
            gather_panel(key, args.rows + 8 * PANEL_ROWS * number, n_records, panel)
            token = 0
            while token < count:
                _, size = tile_of(token, count, n_tiled)
                x = activations + token * args.n_blocks * act.RECORD_BYTES
                if size < 4:
                    if size == 3:
                        multiply(key, isa, 3, 3, (panel,), x, n_records, 0, sums)
                    elif size == 2:
                        multiply(key, isa, 2, 2, (panel,), x, n_records, 0, sums)
                    else:
                        multiply(key, isa, 1, 1, (panel,), x, n_records, 0, sums)
                    write_chosen(args, number, n_chosen, token, size, sums)
                for part in range(size // 4):
                    at = x + part * 4 * act.RECORD_BYTES
                    if size == 16:
                        multiply(key, isa, 4, 16, (panel,), at, n_records, 0, sums)
                    elif size == 8:
                        multiply(key, isa, 4, 8, (panel,), at, n_records, 0, sums)
                    else:
                        multiply(key, isa, 4, 4, (panel,), at, n_records, 0, sums)
                    write_chosen(args, number, n_chosen, token + 4 * part, np.int64(4), sums)
                token += size

    return chosen
