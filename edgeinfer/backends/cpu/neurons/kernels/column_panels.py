"""Turns columns of a block's neurons into panels, for passes of several tokens: integer dots as of whole matrices.

Memory: addresses int64[32] of the columns of a block's neurons; for a neuron that is left out any address will do (its
activations are zero). Scratch of PANELS_BYTES: the codes of two panels of 16 rows and 32 columns, as
`panels.IntegerPanel` lays them out; activations and sums as in `kernels.column_sums`. The step for a block is
that of `kernels.matmul.tiles`.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.matmul.codes import VECTOR, PairReader
from edgeinfer.backends.cpu.kernels.matmul.tiles import LinesAhead, OneTile, PairEmitter
from edgeinfer.backends.cpu.layout.panels import BLOCK, PANEL_ROWS, IntegerPanel
from edgeinfer.backends.cpu.neurons.kernels.layout import CODE_BITS, ColumnForm
from edgeinfer.jit import emit
from edgeinfer.jit.targets import target

PANELS_BYTES = 2 * BLOCK * PANEL_ROWS
ADDRESSES_BYTES = 8 * BLOCK
RUN = ir.VectorType(emit.I8, PANEL_ROWS)


def panel_of(form):
    """The panel type with the codes of a column form."""
    return IntegerPanel(CODE_BITS[form.code], BLOCK, "f16", form.has_minimum)


def interleaved(builder, first, second):
    """Interleave two vectors, one lane of each in turn."""
    count = first.type.count
    order = [place + side for place in range(count) for side in (0, count)]
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(emit.I32, 2 * count), order))


def four_columns(builder, columns):
    """64 bytes: for each of 16 rows the bytes of four columns."""
    pairs = [interleaved(builder, *columns[place : place + 2]) for place in (0, 2)]
    shorts = [builder.bitcast(pair, ir.VectorType(emit.I16, PANEL_ROWS)) for pair in pairs]
    return builder.bitcast(interleaved(builder, *shorts), emit.BYTES)


def nibble_panels(builder, addresses, row_at, out):
    """Both panels of 4-bit codes, eight columns at a time: columns 0-3 low, 4-7 high."""
    four, low, high = (emit.repeated(RUN, number) for number in (4, 0x0F, -16))
    for group in range(BLOCK // 8):
        loaded = [
            emit.load(builder, builder.add(address, row_at), RUN) for address in addresses[8 * group : 8 * group + 8]
        ]
        pairs = list(zip(loaded[:4], loaded[4:], strict=True))
        first = [builder.or_(builder.and_(own, low), builder.shl(other, four)) for own, other in pairs]
        second = [builder.or_(builder.lshr(own, four), builder.and_(other, high)) for own, other in pairs]
        for panel, columns in enumerate((first, second)):
            at = panel * PANEL_ROWS * BLOCK // 2 + VECTOR * group
            emit.store(builder, four_columns(builder, columns), out, at)


def byte_panels(builder, addresses, row_at, out):
    """Both panels of 8-bit codes, four columns at a time, with 128 added."""
    for group in range(BLOCK // 4):
        for panel in range(2):
            columns = [
                emit.load(builder, builder.add(address, row_at), RUN, panel * PANEL_ROWS)
                for address in addresses[4 * group : 4 * group + 4]
            ]
            codes = builder.xor(four_columns(builder, columns), emit.repeated(emit.BYTES, -128))
            emit.store(builder, codes, out, panel * PANEL_ROWS * BLOCK + VECTOR * group)


@intrinsic(prefer_literal=True)
def build_panels(context, key, addresses, row_at, out):
    """Unpack the codes of 32 rows, `row_at` bytes into each column."""
    build = nibble_panels if CODE_BITS[ColumnForm.parse(key.literal_value).code] == 4 else byte_panels

    def generate(context, builder, signature, values):
        _, addresses, row_at, out = values
        listed = [emit.load(builder, addresses, emit.I64, 8 * place, 8) for place in range(BLOCK)]
        build(builder, listed, row_at, out)
        return context.get_dummy_value()

    return types.void(key, *[types.intp] * 3), generate


class SharedReader:
    """A panel with codes from scratch, and with the scales and minima that blocks of 32 neurons share."""

    def __init__(self, builder, pair, scales, minima, part):
        self._builder, self._pair, self._scales, self._minima, self._at = (
            builder,
            pair,
            scales,
            minima,
            2 * PANEL_ROWS * part,
        )

    def codes(self, block):
        return self._pair.codes(block)

    def scale(self, block, group):
        return emit.load_halves(self._builder, self._scales, self._at)

    def minimum(self, block, group):
        return emit.load_halves(self._builder, self._minima, self._at)


@intrinsic(prefer_literal=True)
def add_panels(context, key, isa_name, n_tokens, codes, x, goal):
    """float32[n_tokens, 32] += both panels times a block's activations.

    x: the block's record of the first token. `goal`: the sums, bytes between tokens, scales and minima float16[32].
    """
    form, isa, n = ColumnForm.parse(key.literal_value), target(isa_name.literal_value), n_tokens.literal_value
    panel = panel_of(form)

    def generate(context, builder, signature, values):
        _, _, _, codes, x, goal = values
        sums, stride, scales, minima = (builder.extract_value(goal, place) for place in range(4))
        readers = []
        for part in range(2):
            record = builder.add(codes, emit.integer(part * panel.code_bytes - panel.codes_at))
            pair = PairReader(builder, panel, isa, record, emit.integer(0))
            readers.append(SharedReader(builder, pair, scales, minima, part))
        rows = [builder.add(sums, builder.mul(stride, emit.integer(token))) for token in range(n)]
        places = [(row, 64 * part) for part in range(2) for row in rows]
        before = [emit.load_floats(builder, row, at) for row, at in places]
        emitter = PairEmitter(builder, panel, isa, readers, OneTile(builder, x, n), n, LinesAhead(builder, [], 0))
        for total, (row, at) in zip(emitter.block(0, before), places, strict=True):
            emit.store(builder, total, row, at, 4)
        return context.get_dummy_value()

    return types.void(key, isa_name, n_tokens, types.intp, types.intp, goal), generate
