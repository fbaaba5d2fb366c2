"""Reading a panel's records inside a product kernel: codes, scales and minima of 16 rows, as values in registers.

In: a panel, the address of one record and the number of one of its pairs of blocks. Out, while code is emitted: 64
unsigned values at a time with their columns, float32[16] scales and minima. Knows nothing of activations.
"""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from edgeinfer.backends.cpu.kernels.matmul.entries import EntryReader
from edgeinfer.backends.cpu.layout import trits
from edgeinfer.backends.cpu.layout.panels import CODES_ALIGNMENT, PLANES, TRITS, UNIT_BYTES, IntegerPanel
from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Target

SHORTS = ir.VectorType(emit.I16, 2 * emit.LANES)
ROW_BYTES = ir.VectorType(emit.I8, emit.LANES)
VECTOR = 64
"""Bytes of the codes of four columns."""


class PairReader:
    """Two neighbouring blocks of 32 columns (`block` is 0 or 1) of a record of 16 rows."""

    def __init__(self, builder: Builder, panel: IntegerPanel, isa: Target, record: Value, pair: Value) -> None:
        self._builder = builder
        self._panel = panel
        self._isa = isa
        self._record = record
        self._pair = pair
        self._codes = builder.add(record, builder.mul(pair, emit.integer(2 * panel.code_bytes)))
        self._scales = builder.add(record, builder.mul(pair, emit.integer(2 * panel.groups * panel.scale_bytes)))

    def codes(self, block: int) -> Iterator[tuple[int, Value]]:
        """(column in the block, values of the 4 columns from it on, for all rows) in the order of columns.

        A value is less than 2 ** panel.dot_bits and too large by panel.offset.
        """
        panel = self._panel
        if panel.book == TRITS:
            yield from self._ternary(block)
            return
        if panel.book:
            yield from self.entries(block).codes()
            return
        for vector in range(8):
            at, low, code = panel.codes_at + block * panel.code_bytes, max(0, panel.step - 1), None
            for width in PLANES[panel.code_bits]:
                field = self._field(at, width, vector, low)
                code = field if code is None else self._builder.or_(code, field)
                at, low = at + VECTOR * width, low + width
            if panel.levels and not panel.step:
                code = self._isa.lookup(self._builder, [level + panel.offset for level in panel.levels], code)
            yield 4 * vector, code

    def entries(self, block: int) -> EntryReader:
        """The entries of a code book that are the codes of a block."""
        at = self._builder.add(self._codes, emit.integer(self._panel.codes_at + block * self._panel.code_bytes))
        return EntryReader(self._builder, self._isa, self._panel.book, at)

    def scale(self, block: int, group: int) -> Value:
        """Scales of one group of a block: float32[16]."""
        panel, at = self._panel, self._panel.scales_at + self._group_at(block, group)
        if panel.scales == "odd":
            return self._odd_multiple(block * panel.groups + group)
        if panel.scales == "unit":
            return emit.load_halves(self._builder, self._record, 0)
        if panel.scales == "e4m3f32":
            return self._builder.fmul(self._half_float(at), emit.load_floats(self._builder, self._record, 0))
        if panel.has_units:
            return self._multiple(0, at, 0, 15 if panel.scales == "u4" else 255)
        if panel.scales == "e8m0":
            return self._power(at)
        if panel.scales == "e4m3":
            return self._half_float(at)
        return self._floats(at)

    def minimum(self, block: int, group: int) -> Value:
        """Minima of one group of a block: float32[16]."""
        panel, at = self._panel, self._panel.minima_at + self._group_at(block, group)
        if panel.has_units:
            return self._multiple(UNIT_BYTES, at, 4 if panel.scales == "u4" else 0, 255)
        return self._floats(at)

    def _ternary(self, block: int) -> Iterator[tuple[int, Value]]:
        """Digits of bytes that hold five each, then of the vector that all pairs share (`layout.trits`)."""
        builder, at = self._builder, self._panel.codes_at
        own = builder.add(self._record, builder.mul(self._pair, emit.integer(trits.PAIR_BYTES)))
        for vector in range(8):
            source, digit = divmod(8 * block + vector, trits.DIGITS)
            if 8 * block + vector == trits.FOURS - 1:
                shared = emit.load(builder, self._record, SHORTS, at + trits.SHARED_AT, CODES_ALIGNMENT)
                up = builder.trunc(builder.mul(self._pair, emit.integer(2)), emit.I16)
                moved = builder.lshr(shared, emit.splat(builder, up, SHORTS.count))
                yield 4 * vector, builder.and_(builder.bitcast(moved, emit.BYTES), emit.byte_table([3], VECTOR))
                continue
            if digit == 0 or vector == 0:
                rest = emit.load(builder, own, emit.BYTES, at + source * VECTOR, CODES_ALIGNMENT)
                for _ in range(digit):
                    rest = self._tripled(rest)
            reached = [
                builder.sext(builder.icmp_unsigned(">=", rest, emit.byte_table([least], VECTOR)), emit.BYTES)
                for least in (86, 171)
            ]
            yield 4 * vector, builder.neg(builder.add(*reached))
            rest = self._tripled(rest)

    def _tripled(self, vector: Value) -> Value:
        return self._builder.add(vector, self._builder.add(vector, vector))

    def _field(self, at: int, width: int, vector: int, low: int) -> Value:
        """The `width` bits of the plane at `at` that belong to a vector of codes, moved up to bit `low`.

        A vector of the plane holds 8 / width neighbouring vectors of codes, the first in its lowest bits.
        """
        builder, share = self._builder, 8 // width
        loaded = emit.load(builder, self._codes, emit.BYTES, at + VECTOR * (vector // share), CODES_ALIGNMENT)
        if width == 8:
            return loaded
        up = low - width * (vector % share)
        if up:  # in 16-bit lanes, as bytes cannot be shifted; bits that cross a byte are masked away
            shift = builder.shl if up > 0 else builder.lshr
            shorts = shift(builder.bitcast(loaded, SHORTS), emit.repeated(SHORTS, abs(up)))
            loaded = builder.bitcast(shorts, emit.BYTES)
        return builder.and_(loaded, emit.byte_table([(1 << width) - 1 << low], VECTOR))

    def _group_at(self, block: int, group: int) -> int:
        return (block * self._panel.groups + group) * self._panel.scale_bytes

    def _floats(self, at: int) -> Value:
        load = emit.load_halves if self._panel.scales == "f16" else emit.load_floats
        return load(self._builder, self._scales, at)

    def _bytes(self, at: int) -> Value:
        """16 bytes as unsigned integers."""
        return self._builder.zext(emit.load(self._builder, self._scales, ROW_BYTES, at), emit.I32S)

    def _multiple(self, unit_at: int, at: int, shift: int, mask: int) -> Value:
        """The rows' units times an integer each: exact in float32."""
        builder = self._builder
        unit = emit.load_halves(builder, self._record, unit_at)
        if self._panel.scales == "i8":
            integer = builder.sext(emit.load(builder, self._scales, ROW_BYTES, at), emit.I32S)
            return builder.fmul(unit, builder.sitofp(integer, emit.F32S))
        integer = builder.lshr(self._bytes(at), emit.repeated(emit.I32S, shift))
        if mask < 255:
            integer = builder.and_(integer, emit.repeated(emit.I32S, mask))
        return builder.fmul(unit, builder.sitofp(integer, emit.F32S))

    def _odd_multiple(self, group: int) -> Value:
        """The rows' units times 2 * integer + 1, over a power of two: exact in float32. `group`: in the pair."""
        builder, panel = self._builder, self._panel
        byte = self._bytes(panel.scales_at + group // 2 * emit.LANES)
        integer = builder.lshr(byte, emit.repeated(emit.I32S, 4)) if group % 2 else byte
        doubled = builder.shl(builder.and_(integer, emit.repeated(emit.I32S, 15)), emit.repeated(emit.I32S, 1))
        odd = builder.sitofp(builder.or_(doubled, emit.repeated(emit.I32S, 1)), emit.F32S)
        part = builder.fmul(emit.load_halves(builder, self._record, 0), emit.repeated(emit.F32S, 0.5**panel.halvings))
        return builder.fmul(part, odd)

    def _half_float(self, at: int) -> Value:
        """Half of unsigned 8-bit floats: their bits are those of a float16 smaller by 2 ** 8. The byte 127 is zero."""
        builder, most = self._builder, emit.repeated(ROW_BYTES, 127)
        byte = emit.load(builder, self._scales, ROW_BYTES, at)
        is_zero = builder.icmp_unsigned("==", byte, most)
        byte = builder.select(is_zero, emit.repeated(ROW_BYTES, 0), builder.and_(byte, most))
        bits = builder.shl(builder.zext(byte, emit.I16S), emit.repeated(emit.I16S, 7))
        return builder.fmul(builder.fpext(builder.bitcast(bits, emit.F16S), emit.F32S), emit.repeated(emit.F32S, 128.0))

    def _power(self, at: int) -> Value:
        """2 ** (byte - 128), by writing the float32 exponent directly, except for the two subnormal values."""
        builder, exponent = self._builder, self._bytes(at)
        normal = builder.shl(builder.sub(exponent, emit.repeated(emit.I32S, 1)), emit.repeated(emit.I32S, 23))
        subnormal = builder.shl(emit.repeated(emit.I32S, 1 << 21), exponent)
        is_normal = builder.icmp_unsigned(">=", exponent, emit.repeated(emit.I32S, 2))
        return builder.bitcast(builder.select(is_normal, normal, subnormal), emit.F32S)
