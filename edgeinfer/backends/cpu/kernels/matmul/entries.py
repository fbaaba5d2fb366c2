"""Reading codes that are entries of a code book: 16 rows' entries are loaded from a table, then signed or shifted.

In: the address of a block of 32 columns of 16 rows (`layout.books`). Out, while code is emitted: 64 unsigned values at
a time with their columns, or 64 magnitudes with their signs. The table lies in the compiled code; entries are loaded
one by one where gathering loads are no faster. Knows nothing of scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from llvmlite import ir

from edgeinfer.backends.cpu.layout.books import BOOKS, ROWS
from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Target
from edgeinfer.models.quants import code_book

SHORTS = ir.VectorType(emit.I16, 2 * emit.LANES)
DOUBLES = ir.VectorType(ir.DoubleType(), 8)
"""As which entries are loaded: two of them share a register without further instructions."""
EIGHTHS = 4
"""Eight columns at a time, of a block."""
SHIFT = 8
"""Entries in eighths are this many times a weight of the book."""


ORDER = (0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)
"""Rows as entries of eight weights are loaded: then their halves are told apart within 128 bits."""


class EntryReader:
    """The entries of one block of a panel whose codes are those of the book `name`."""

    def __init__(self, builder: Builder, isa: Target, name: str, block: Value) -> None:
        self._builder = builder
        self._isa = isa
        self._book = BOOKS[name]
        self._block = block
        self._table = self._global(name)

    def codes(self) -> Iterator[tuple[int, Value]]:
        """(column in the block, values of the 4 columns from it on, for all rows): weights plus `offset`."""
        signs = self.signs()
        for eighth in range(EIGHTHS):
            for part, weights in enumerate(self.eight(emit.integer(eighth))):
                column = 8 * eighth + 4 * part
                yield column, weights if signs is None else self.signed(weights, self.moved(signs, column // 4))

    def signs(self) -> Value | None:
        """The signs of the block, for `moved`; None if weights have none."""
        return emit.load(self._builder, self._block, SHORTS, self._book.signs_at, 8) if self._book.has_signs else None

    def moved(self, signs: Value, fours: int) -> Value:
        """The signs with those of the columns `4 * fours` later in the highest bits of the bytes."""
        return self._builder.shl(signs, emit.repeated(SHORTS, fours)) if fours else signs

    def eight(self, eighth: Value) -> list[Value]:
        """Eight columns of all rows, four at a time: magnitudes, or weights + `offset` if they have no signs."""
        if self._book.width == 8:
            return self._weights(eighth)
        first = self._builder.shl(eighth, emit.integer(1))
        return [self._weights(self._builder.add(first, emit.integer(part)))[0] for part in range(2)]

    def signed(self, magnitudes: Value, signs: Value) -> Value:
        """The offset plus the magnitudes, or minus them where a sign is negative."""
        builder, offset = self._builder, emit.repeated(emit.BYTES, self._book.offset)
        is_negative = builder.icmp_signed("<", builder.bitcast(signs, emit.BYTES), emit.repeated(emit.BYTES, 0))
        return builder.select(is_negative, builder.sub(offset, magnitudes), builder.add(offset, magnitudes))

    def _global(self, name: str) -> Value:
        """The address of the book's entries, eight bytes each, with the offset added if there are no signs to apply.

        Entries of four weights are followed by four zeros, and so is what lies before the first one.
        """
        module, label = self._builder.module, f"code_book_{name}"
        table = code_book(name).astype(np.int16)
        if self._book.has_shifts:
            table = table * SHIFT + self._book.offset
        entries = np.zeros((1 + len(table), 8), np.uint8)
        entries[1:, : self._book.width] = table
        content = bytearray(entries.tobytes())
        kind = ir.ArrayType(emit.I8, len(content))
        found = module.globals.get(label)
        if found is None:
            found = ir.GlobalVariable(module, kind, label)
            found.linkage, found.global_constant, found.align = "internal", True, 64
            found.initializer = ir.Constant(kind, content)
        return self._builder.add(self._builder.ptrtoint(found, emit.I64), emit.integer(8))

    def _at(self, entry: Value, n_bytes: int, start: int = 0) -> Value:
        """The address of what an entry has from byte `start` of the block on, `n_bytes` for each entry."""
        at = self._builder.add(self._block, self._builder.mul(entry, emit.integer(n_bytes)))
        return self._builder.add(at, emit.integer(start)) if start else at

    def _indices(self, entry: Value, kind: ir.VectorType) -> Value:
        """The rows' indices of an entry, 16 integers of `kind`."""
        builder, book, low = self._builder, self._book, self._low(entry)
        indices = builder.zext(low, kind)
        planes = self._at(entry, 2 * book.high_bits, book.high_at)
        for plane in range(book.high_bits):
            bits = self._bits(planes, 2 * plane, kind)
            high = builder.select(bits, emit.repeated(kind, 256 << plane), emit.repeated(kind, 0))
            indices = builder.or_(indices, high)
        return indices

    def _low(self, entry: Value) -> Value:
        """The low bytes of the rows' indices."""
        return emit.load(self._builder, self._at(entry, ROWS), ir.VectorType(emit.I8, ROWS))

    def _lanes(self, vector: Value) -> list[Value]:
        """16 lanes of 8 or 16 bits, int64 each: taken out 64 bits at a time, as that costs less than one by one."""
        builder, width, lanes = self._builder, vector.type.element.width, []
        parts = builder.bitcast(vector, ir.VectorType(emit.I64, ROWS * width // 64))
        for place in range(parts.type.count):
            part = emit.hidden(builder, builder.extract_element(parts, ir.Constant(emit.I32, place)))
            for shift in range(0, 64, width):
                moved = builder.lshr(part, emit.integer(shift)) if shift else part
                lanes.append(builder.and_(moved, emit.integer((1 << width) - 1)))
        return lanes

    def _bits(self, address: Value, at: int, kind: ir.VectorType) -> Value:
        """Whether each row's bit is set, for selecting numbers of `kind`."""
        builder = self._builder
        copies = emit.splat(builder, builder.zext(emit.load(builder, address, emit.I16, at, 2), emit.I32), ROWS)
        if kind is emit.I16S:
            copies = builder.trunc(copies, kind)
        single = ir.Constant(kind, [1 << row if row < 15 or kind is emit.I32S else -(1 << 15) for row in range(ROWS)])
        return builder.icmp_unsigned("==", builder.and_(copies, single), single)

    def _weights(self, entry: Value) -> list[Value]:
        """The bytes of an entry of all rows, four columns at a time."""
        weights = self._loaded(entry)
        return weights if self._book.has_signs else [self._shifted(part, entry) for part in weights]

    def _loaded(self, entry: Value) -> list[Value]:
        """The same as the table has them."""
        builder, width = self._builder, self._book.width
        if self._isa.gather is not None:
            found = self._isa.gather(builder, self._table, self._indices(entry, emit.I32S), width)
            parts = [emit.slice_lanes(builder, found, range(part, 4 * width, width // 4)) for part in range(width // 4)]
            return [builder.bitcast(part, emit.BYTES) for part in parts]
        indices = self._lanes(self._indices(entry, emit.I16S) if self._book.high_bits else self._low(entry))
        if width == 4:
            even, odd = (self._doubles(indices[part::2], -4 * part) for part in range(2))
            return [builder.bitcast(builder.or_(even, odd), emit.BYTES)]
        halves = (ORDER[: ROWS // 2], ORDER[ROWS // 2 :])
        low, high = (builder.bitcast(self._doubles([indices[row] for row in rows], 0), emit.I32S) for rows in halves)
        places = [ORDER.index(row) for row in range(ROWS)]
        chosen = (ir.Constant(emit.I32S, [2 * place + part for place in places]) for part in range(2))
        return [builder.bitcast(builder.shuffle_vector(low, high, lanes), emit.BYTES) for lanes in chosen]

    def _doubles(self, indices: Sequence[Value], at: int) -> Value:
        """Eight bytes from `at` bytes after the start of each of eight entries on: int64[8]."""
        builder, found = self._builder, ir.Constant(DOUBLES, ir.Undefined)
        for place, index in enumerate(indices):
            address = builder.add(self._table, builder.shl(index, emit.integer(3)))
            value = emit.load(builder, address, DOUBLES.element, at, 4)
            found = builder.insert_element(found, value, ir.Constant(emit.I32, place))
        return builder.bitcast(found, ir.VectorType(emit.I64, 8))

    def _shifted(self, weights: Value, entry: Value) -> Value:
        """The entry plus an eighth, or minus it where the row's bit is set."""
        builder = self._builder
        down, up = emit.repeated(emit.I32S, -1), emit.repeated(emit.I32S, 0x01010101)
        bits = self._bits(self._at(entry, 2, self._book.signs_at), 0, emit.I32S)
        return builder.add(weights, builder.bitcast(builder.select(bits, down, up), emit.BYTES))
