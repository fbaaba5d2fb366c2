"""The innermost loop of down products by columns: the neurons of one block times one to three tokens, for some rows.

Memory: columns and scales as `layout.columns` lays them out, activations as `kernels.matmul.activations`. The dot of a
row's block is an exact integer: sums of 4-bit codes less 8 fit in 16 bits, so intermediate sums may wrap, and so may
pairs of 8-bit products. Then follows the same step as in `kernels.matmul.tiles` for a block, so the sums have the same
bits. Neurons that are left out have zero activations in every token.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.panels import BLOCK, UNIT_ROWS
from edgeinfer.backends.cpu.neurons.kernels.layout import CODE_BITS, ColumnForm
from edgeinfer.jit import emit

HALF = UNIT_ROWS // 2


class BlockNeurons:
    """The neurons of a block, while code is emitted: addresses of their columns and places in the block.

    The neurons after them, as many as `n_ahead` says, are prefetched.
    """

    def __init__(self, builder, columns, neurons, row_at, count, n_ahead):
        self._builder, self._columns, self._neurons, self._row_at = builder, columns, neurons, row_at
        self._count, self._n_ahead = count, n_ahead

    def column(self, index):
        """The address of a neuron's codes of the first row."""
        builder = self._builder
        later = builder.add(index, self._count)
        later = builder.select(builder.icmp_signed("<", index, self._n_ahead), later, index)
        emit.prefetch(builder, self._address(later))
        return self._address(index)

    def _address(self, index):
        builder = self._builder
        at = builder.add(self._columns, builder.mul(index, emit.integer(8)))
        return builder.add(emit.load(builder, at, emit.I64, align=8), self._row_at)

    def place(self, index):
        """A neuron's column in the block."""
        builder = self._builder
        at = builder.add(self._neurons, builder.mul(index, emit.integer(4)))
        number = builder.zext(emit.load(builder, at, emit.I32, align=4), emit.I64)
        return builder.and_(number, emit.integer(BLOCK - 1))


def activation(builder, x, place, token, kind):
    """A token's int8 activation of a neuron in all lanes, widened."""
    at = builder.add(x, place)
    return emit.splat(
        builder, builder.sext(emit.load(builder, at, emit.I8, token * act.RECORD_BYTES), kind.element), kind.count
    )


def nibble_dots(builder, form, neurons, count, x, n_tokens, n_units):
    """Dots of 4-bit codes: for each token int32[16] of each half unit.

    A byte is its low code plus 16 times its high one: sums of bytes and of high codes give both.
    """
    shorts, size = ir.VectorType(emit.I16, HALF * n_units), n_units * HALF

    def step(index, carried):
        loaded = emit.load(builder, neurons.column(index), ir.VectorType(emit.I8, size))
        both = builder.zext(loaded, shorts)
        high = builder.lshr(both, emit.repeated(shorts, 4))
        place, results = neurons.place(index), []
        for token in range(n_tokens):
            value = activation(builder, x, place, token, shorts)
            results += [builder.add(carried[2 * token], builder.mul(both, value))]
            results += [builder.add(carried[2 * token + 1], builder.mul(high, value))]
        return results

    sums = emit.loop(builder, count, [emit.repeated(shorts, 0)] * (2 * n_tokens), step)
    found = []
    for token in range(n_tokens):
        less = emit.load(builder, x, emit.I32, token * act.RECORD_BYTES + act.LESS_8_AT, 4)
        centre = emit.splat(builder, builder.trunc(less, emit.I16), size)
        both, high = sums[2 * token : 2 * token + 2]
        low = builder.sub(both, builder.shl(high, emit.repeated(shorts, 4)))
        halves = [builder.add(part, centre) for part in (low, high)]
        dots = []
        for unit in range(n_units):
            for half in halves:
                dot = builder.sext(emit.slice_lanes(builder, half, range(unit * HALF, unit * HALF + HALF)), emit.I32S)
                dots.append(dot if form.lowest else builder.sub(dot, emit.splat(builder, less)))
        found.append(dots)
    return found


def byte_dots(builder, form, neurons, count, x, n_tokens, n_units):
    """Dots of signed 8-bit codes: for each token int32[16] of each half unit. Two neurons are added in 16 bits."""
    size = UNIT_ROWS * n_units
    shorts, ints = ir.VectorType(emit.I16, size), ir.VectorType(emit.I32, size)

    def products(index, token, codes):
        return builder.mul(codes, activation(builder, x, neurons.place(index), token, shorts))

    def codes_of(index):
        return builder.sext(emit.load(builder, neurons.column(index), ir.VectorType(emit.I8, size)), shorts)

    def pair(index, carried):
        first = builder.mul(index, emit.integer(2))
        second = builder.add(first, emit.integer(1))
        codes = codes_of(first), codes_of(second)
        results = []
        for token, total in enumerate(carried):
            added = builder.add(products(first, token, codes[0]), products(second, token, codes[1]))
            results.append(builder.add(total, builder.sext(added, ints)))
        return results

    def last(index, carried):
        single = builder.sub(count, emit.integer(1))
        codes = codes_of(single)
        return [
            builder.add(total, builder.sext(products(single, token, codes), ints))
            for token, total in enumerate(carried)
        ]

    sums = emit.loop(builder, builder.lshr(count, emit.integer(1)), [emit.repeated(ints, 0)] * n_tokens, pair)
    sums = emit.loop(builder, builder.and_(count, emit.integer(1)), sums, last)
    return [
        [emit.slice_lanes(builder, total, range(at, at + emit.LANES)) for at in range(0, size, emit.LANES)]
        for total in sums
    ]


@intrinsic(prefer_literal=True)
def add_block(context, key, n_tokens, n_units, chosen, row_at, x, target):
    """float32[n_tokens, 32 * n_units] += the contribution of some neurons of a block.

    `chosen`: addresses of columns int64[count], neurons int32[count], their count, and how many neurons follow them.
    `row_at`: bytes into each column. x: the block's record of the first token. `target`: the sums, bytes between
    tokens, scales and minima float16[32 * n_units].
    """
    form, n, units = ColumnForm.parse(key.literal_value), n_tokens.literal_value, n_units.literal_value
    dots_of = nibble_dots if CODE_BITS[form.code] == 4 else byte_dots

    def generate(context, builder, signature, values):
        _, _, _, chosen, row_at, x, target = values
        columns, neurons, count, n_ahead = (builder.extract_value(chosen, place) for place in range(4))
        sums, sums_stride, scales, minima = (builder.extract_value(target, place) for place in range(4))
        listed = BlockNeurons(builder, columns, neurons, row_at, count, n_ahead)
        dots = dots_of(builder, form, listed, count, x, n, units)
        for token in range(n):
            row, record = builder.add(sums, builder.mul(sums_stride, emit.integer(token))), token * act.RECORD_BYTES
            factor = emit.broadcast_float(builder, x, record + act.SCALE_AT)
            share = emit.broadcast_float(builder, x, record + act.SUM_AT)
            for part, dot in enumerate(dots[token]):
                scale = emit.load_halves(builder, scales, 32 * part)
                scaled = builder.fmul(builder.sitofp(dot, emit.F32S), factor)
                total = emit.fma(builder, scaled, scale, emit.load_floats(builder, row, 64 * part))
                if form.has_minimum:
                    total = emit.fma(builder, emit.load_halves(builder, minima, 32 * part), share, total)
                emit.store(builder, total, row, 64 * part, 4)
        return context.get_dummy_value()

    return types.void(key, n_tokens, n_units, chosen, types.intp, types.intp, target), generate
