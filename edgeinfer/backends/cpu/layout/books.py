"""Code books in panels: how the entries that name several weights at once lie in a block of 16 rows.

A block of 32 columns is the low bytes of its indices (entry after entry, 16 rows each), one plane of 16 bits per entry
for each higher bit of the indices, then the signs or the shifts (16 bits per entry). Signs are four bytes a row, one
for each of four columns, whose highest bit belongs to the first four columns of the block, the next one to the next
four. In: the name of a code book. Out: sizes and places. Loads no compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

BLOCK_COLUMNS, ROWS = 32, 16


@dataclass(frozen=True, slots=True)
class VectorBook:
    """Entries of `width` weights, named by `index_bits`, of which none is larger than `largest`.

    Weights have a sign each (`has_signs`), or entries are in eighths and moved up or down by one (`has_shifts`).
    """

    width: int
    index_bits: int
    largest: int
    has_signs: bool = False

    @property
    def has_shifts(self) -> bool:
        """Whether an entry is moved by an eighth: those without signs are."""
        return not self.has_signs

    @property
    def entries(self) -> int:
        """Entries of a block, per row."""
        return BLOCK_COLUMNS // self.width

    @property
    def high_bits(self) -> int:
        """Bits of an index beyond its low byte."""
        return self.index_bits - 8

    @property
    def high_at(self) -> int:
        """Byte offset of the planes of higher bits in a block."""
        return ROWS * self.entries

    @property
    def signs_at(self) -> int:
        """Byte offset of the signs or shifts."""
        return self.high_at + 2 * self.high_bits * self.entries

    @property
    def block_bytes(self) -> int:
        return self.signs_at + (BLOCK_COLUMNS * ROWS // 8 if self.has_signs else 2 * self.entries)

    @property
    def magnitude_bits(self) -> int:
        """Bits of a weight without its sign."""
        return self.largest.bit_length()

    @property
    def offset(self) -> int:
        """What makes all weights positive: a power of two."""
        return 1 << self.largest.bit_length()


BOOKS = MappingProxyType(
    {
        "iq1_s": VectorBook(8, 11, 9),
        "iq2_xxs": VectorBook(8, 8, 43, has_signs=True),
        "iq2_xs": VectorBook(8, 9, 43, has_signs=True),
        "iq2_s": VectorBook(8, 10, 43, has_signs=True),
        "iq3_xxs": VectorBook(4, 8, 62, has_signs=True),
        "iq3_s": VectorBook(4, 9, 15, has_signs=True),
    }
)
"""By the names of `models.quants`."""
