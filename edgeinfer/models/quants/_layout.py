"""The positions of a block's numbers, as data: enough to rearrange a format's bits without unpacking them.

In and out: nothing; these are the types that the files of this folder use. `unpack` remains the reference; a layout
says the same for codes that are whole bit fields. Independent of particular formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Order: TypeAlias = Literal["bytes", "halves", "eights", "bits"]


@dataclass(frozen=True, slots=True)
class BitPiece:
    """`width` bits of a number, from bit `shift` of byte `byte` of the block; they are its bits `place` and up."""

    byte: int
    shift: int
    width: int
    place: int = 0


Number: TypeAlias = tuple[BitPiece, ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """`width` bits of each code of a block, in runs of 32 weights that start at (byte, bit) of `runs`.

    `order` of a run's weights: "bytes": weight w in byte w; "halves": weight w in byte w % 16, weights 16-31 `width`
    bits higher than 0-15; "eights": the same by 16 weights: weight w in byte 8 * (w // 16) + w % 8; "bits": one after
    another, lowest bit of the first byte first.
    """

    width: int
    order: Order
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BookEntries:
    """Codes that are entries of the code book `book`, several weights each: the bits of every entry's index.

    `signs`: a number for every eight weights, whose set bits, lowest first, mean that the weight is negated; if it has
    seven bits, the eighth makes the number of set bits even. `shifts`: one bit per entry of a book in eighths, whether
    an eighth is subtracted from its weights or added.
    """

    book: str
    indices: tuple[Number, ...]
    signs: tuple[Number, ...] = ()
    shifts: tuple[Number, ...] = ()


@dataclass(frozen=True, slots=True)
class Multiples:
    """Scales that are integers times the block's scale: one per group, in group order.

    A scale is its number minus `offset`, or unchanged if `signed` (a two's complement byte), or 2 * number + 1 over
    2 ** `halvings` if there are any of those (not None). Minima are the numbers times the block's minimum, and are
    subtracted from the weights.
    """

    scales: tuple[Number, ...]
    minima: tuple[Number, ...] = ()
    offset: int = 0
    signed: bool = False
    halvings: int | None = None


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A block: its codes as `planes`, lowest bits first, or as `entries`; where its scale and its minimum begin.

    A scale is a float16 of the whole block; if `unit` is "e8m0", a byte e that means 2 ** (e - 128); if it is "e4m3",
    a byte for each group, an unsigned 8-bit float that means half of its value. `factor`: where a float32 begins that
    multiplies all scales of the block. Stored codes are the codes minus the lowest possible one, two's complement bytes
    if `signed`, or indices of `levels` if there are any.
    """

    planes: tuple[Plane, ...]
    scale: int | Number
    minimum: int | None = None
    unit: Literal["f16", "e8m0", "e4m3"] = "f16"
    multiples: Multiples | None = None
    signed: bool = False
    levels: tuple[int, ...] = ()
    entries: BookEntries | None = None
    factor: int | None = None

    @property
    def code_bits(self) -> int:
        """Bits per code."""
        return sum(plane.width for plane in self.planes)


def halves_at(byte: int) -> Plane:
    """The nibbles of one run of 32 weights."""
    return Plane(4, "halves", ((byte, 0),))


def bytes_at(width: int, byte: int, per_byte: int, count: int = 8) -> Plane:
    """`count` runs, one weight per byte, with `per_byte` runs sharing 32 bytes from the lowest bits up."""
    runs = tuple((byte + 32 * (run // per_byte), width * (run % per_byte)) for run in range(count))
    return Plane(width, "bytes", runs)


def six_bits(first: int) -> Multiples:
    """Eight 6-bit scales and minima in the 12 bytes from byte `first` (layout: `_bits.six_bit_pairs`)."""

    def number(group: int, start: int, low_shift: int) -> Number:
        if group < 4:
            return (BitPiece(start + group, 0, 6),)
        return (BitPiece(first + 4 + group, low_shift, 4), BitPiece(start + group - 4, 6, 2, 4))

    scales = tuple(number(group, first, 0) for group in range(8))
    return Multiples(scales, tuple(number(group, first + 4, 4) for group in range(8)))
