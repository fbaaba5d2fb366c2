"""Reading a panel's records inside a product kernel: codes, scales and minima of 16 rows, as values in registers.

In: a panel, the address of one record and the number of one of its pairs of blocks. Out, while code is emitted: 64
unsigned values at a time with their columns, float32[16] scales and minima. Knows nothing of activations.
"""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from edgeinfer.backends.cpu.layout.panels import CODES_ALIGNMENT, PLANES, UNIT_BYTES, IntegerPanel
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
        self._codes = builder.add(record, builder.mul(pair, emit.integer(2 * panel.code_bytes)))
        self._scales = builder.add(record, builder.mul(pair, emit.integer(2 * panel.groups * panel.scale_bytes)))

    def codes(self, block: int) -> Iterator[tuple[int, Value]]:
        """(column in the block, values of the 4 columns from it on, for all rows) in the order of columns.

        A value is less than 2 ** panel.dot_bits and too large by panel.offset.
        """
        panel = self._panel
        for vector in range(8):
            at, low, code = panel.codes_at + block * panel.code_bytes, 0, None
            for width in PLANES[panel.code_bits]:
                field = self._field(at, width, vector, low)
                code = field if code is None else self._builder.or_(code, field)
                at, low = at + VECTOR * width, low + width
            if panel.levels:
                code = self._isa.lookup(self._builder, [level + panel.offset for level in panel.levels], code)
            yield 4 * vector, code

    def scale(self, block: int, group: int) -> Value:
        """Scales of one group of a block: float32[16]."""
        panel, at = self._panel, self._panel.scales_at + self._group_at(block, group)
        if panel.has_units:
            return self._multiple(0, at, 0, 15 if panel.scales == "u4" else 255)
        if panel.scales == "e8m0":
            return self._power(at)
        return self._floats(at)

    def minimum(self, block: int, group: int) -> Value:
        """Minima of one group of a block: float32[16]."""
        panel, at = self._panel, self._panel.minima_at + self._group_at(block, group)
        if panel.has_units:
            return self._multiple(UNIT_BYTES, at, 4 if panel.scales == "u4" else 0, 255)
        return self._floats(at)

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

    def _power(self, at: int) -> Value:
        """2 ** (byte - 128), by writing the float32 exponent directly, except for the two subnormal values."""
        builder, exponent = self._builder, self._bytes(at)
        normal = builder.shl(builder.sub(exponent, emit.repeated(emit.I32S, 1)), emit.repeated(emit.I32S, 23))
        subnormal = builder.shl(emit.repeated(emit.I32S, 1 << 21), exponent)
        is_normal = builder.icmp_unsigned(">=", exponent, emit.repeated(emit.I32S, 2))
        return builder.bitcast(builder.select(is_normal, normal, subnormal), emit.F32S)
