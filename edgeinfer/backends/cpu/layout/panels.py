"""Panels: how weight matrices lie in memory for the product kernels.

A panel is 16 rows (one per vector lane). An integer panel is one stream of records of 64 or 256 columns,
[units][scales][minima][codes], so that a product reads memory strictly forward; codes are interleaved four columns at
a time, so one load feeds all 16 rows. A float panel is one column after another. Every quant format has a panel that
holds it without losing a bit, in about as many bytes. In: a quant format. Out: sizes and places; `memory.packing` fills
panels, and `pack_codes` those of formats whose bit layout is unknown.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout import trits
from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.models.quants import BlockFormat, BlockLayout, Codes, FloatFormat

PANEL_ROWS = 16
UNIT_ROWS = 2 * PANEL_ROWS
"""Matrices have whole pairs of panels: products take two at a time, and workers share pairs."""
BLOCK = 32
PAIR = 2 * BLOCK
"""Columns that a kernel takes at a time: activations are padded to whole pairs of blocks."""
UNIT_COLUMNS = 256
"""Columns of a record whose scales are integers times one float16 per row."""
UNIT_BYTES = 2 * PANEL_ROWS
TRITS = "trits"
"""In place of a code book: ternary codes, five to a byte (`layout.trits`)."""
CODES_ALIGNMENT = 32
FLOAT_COLUMNS = 4
"""Columns of a float panel are padded to a multiple of this: one round of the product kernel."""

PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""How the bits of a code are split into planes, lowest first."""

Scales: TypeAlias = Literal["f16", "f32", "e8m0", "e4m3", "e4m3f32", "i8", "u8", "u4", "odd", "unit"]
"""The kind of scale per group and row: a float; a power of two (byte e: 2 ** (e - 128)); half of an unsigned 8-bit
float, in "e4m3f32" times the row's unit, a float32; an integer times the row's unit, a float16, where "u4" stores the
minimum's integer in the high half of the scale's byte; "odd", 2 * integer + 1 over 2 ** `halvings` times the unit,
where a byte holds the integers of two groups, the first one low; or the row's unit itself.
"""
SCALE_BYTES: dict[Scales, float] = {
    "f16": 2,
    "f32": 4,
    "e8m0": 1,
    "e4m3": 1,
    "e4m3f32": 1,
    "i8": 1,
    "u8": 1,
    "u4": 1,
    "odd": 0.5,
    "unit": 0,
}


@dataclass(frozen=True, slots=True)
class IntegerPanel:
    """Unsigned codes of `code_bits`; `group` columns (32 or 16) share a scale, and a minimum if there is one.

    `levels`: the values that codes are indices of, if they are indices. `unit_columns`: columns that share a unit.
    `book`: the code book that codes name entries of, several weights each, or TRITS; then `code_bits` is 0.
    `used_bits`: bits that codes of a byte really have, if fewer; 0 if all.
    """

    code_bits: int
    group: int
    scales: Scales
    has_minimum: bool
    levels: tuple[int, ...] = ()
    unit_columns: int = UNIT_COLUMNS
    halvings: int = 0
    book: str = ""
    used_bits: int = 0

    @property
    def key(self) -> str:
        """A name for kernels and messages; the inverse of `parse`."""
        codes = self.book or f"i{self.code_bits}"
        levels = "-book" + bytes(level & 0xFF for level in self.levels).hex() if self.levels else ""
        used = f"-used{self.used_bits}" if self.used_bits else ""
        halvings = f"-over{1 << self.halvings}" if self.scales == "odd" else ""
        shared = "" if self.unit_columns == UNIT_COLUMNS else f"-by{self.unit_columns}"
        return f"{codes}-{self.group}-{self.scales}{'-min' * self.has_minimum}{halvings}{shared}{levels}{used}"

    @classmethod
    def parse(cls, key: str) -> IntegerPanel:
        """The panel of a key."""
        codes, group, scales, *rest = key.split("-")
        assert scales in get_args(Scales)

        def last(name: str, otherwise: str) -> str:
            return rest.pop().removeprefix(name) if rest and rest[-1].startswith(name) else otherwise

        used = int(last("used", "0"))
        levels = tuple((level ^ 128) - 128 for level in bytes.fromhex(last("book", "")))
        shared, halvings = int(last("by", str(UNIT_COLUMNS))), int(last("over", "1")).bit_length() - 1
        book, bits = (codes, 0) if codes in BOOKS or codes == TRITS else ("", int(codes[1:]))
        return cls(bits, int(group), cast("Scales", scales), bool(rest), levels, shared, halvings, book, used)

    @property
    def offset(self) -> int:
        """The offset of values in products, which are too large by it: a power of two, or 0."""
        if self.used_bits:
            return 1 << (self.used_bits - 1)
        if self.book in BOOKS:
            return BOOKS[self.book].offset
        if self.step:
            return -self.levels[0]
        if self.levels:
            return 1 << (max(max(self.levels), -1 - min(self.levels)).bit_length())
        if self.code_bits == 8:
            return 128
        return 0 if self.has_minimum else 1 << (self.code_bits - 1)

    @property
    def dot_bits(self) -> int:
        """Bits of the unsigned values in products: codes, or levels plus `offset`."""
        if self.used_bits:
            return self.used_bits
        if self.step:
            return (self.levels[-1] - self.levels[0]).bit_length()
        return self.offset.bit_length() if self.levels or self.book else self.code_bits

    @property
    def step(self) -> int:
        """1 or 2 if `levels` are that far apart and -1 is the lowest, so that no table is needed; otherwise 0."""
        apart = {above - level for level, above in itertools.pairwise(self.levels)}
        return apart.pop() if self.levels[:1] == (-1,) and apart in ({1}, {2}) else 0

    @property
    def rows_share_bytes(self) -> bool:
        """Whether a byte may belong to several rows: no row can be stored alone."""
        return self.book in BOOKS

    @property
    def has_units(self) -> bool:
        """Whether scales are a float per row and record, or numbers times that."""
        return self.scales in ("e4m3f32", "i8", "u8", "u4", "odd", "unit")

    @property
    def unit_bytes(self) -> int:
        """Bytes of the units of 16 rows."""
        return 2 * UNIT_BYTES if self.scales == "e4m3f32" else UNIT_BYTES

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return BLOCK // self.group

    @property
    def record_columns(self) -> int:
        return self.unit_columns if self.has_units else PAIR

    @property
    def record_pairs(self) -> int:
        """Pairs of blocks of a record."""
        return self.record_columns // PAIR

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one group of 16 rows."""
        return int(PANEL_ROWS * SCALE_BYTES[self.scales])

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one block of 16 rows: plane after plane, or as `books` says."""
        if self.book:
            return trits.BLOCK_BYTES if self.book == TRITS else BOOKS[self.book].block_bytes
        return PANEL_ROWS * BLOCK * self.code_bits // 8

    @property
    def scales_at(self) -> int:
        """Byte offset of the scales in a record; before them lie the units of the scales, then of the minima."""
        return self.unit_bytes * (1 + self.has_minimum) if self.has_units else 0

    @property
    def minima_at(self) -> int:
        """Byte offset of the minima, which "u4" stores with the scales."""
        return self.scales_at + (0 if self.scales == "u4" else self._scales_bytes)

    @property
    def codes_at(self) -> int:
        """Byte offset of the codes in a record."""
        after = self.minima_at + (self._scales_bytes if self.has_minimum or self.scales == "u4" else 0)
        return -(-after // CODES_ALIGNMENT) * CODES_ALIGNMENT

    @property
    def record_bytes(self) -> int:
        return self.codes_at + self.record_columns // BLOCK * self.code_bytes

    @property
    def unpacked_bytes(self) -> int:
        """Bytes of a block as tile kernels unpack it: a byte per code, float32 scales and minima."""
        return PANEL_ROWS * (BLOCK + 4 * self.groups * (1 + self.has_minimum))

    @property
    def _scales_bytes(self) -> int:
        return self.record_columns // self.group * self.scale_bytes

    def n_records(self, columns: int) -> int:
        """Records of a row of `columns`."""
        return -(-columns // self.record_columns)

    def panel_bytes(self, columns: int) -> int:
        """Bytes of a panel of `columns`."""
        return self.n_records(columns) * self.record_bytes


Element: TypeAlias = Literal["f16", "bf16", "f32"]
ELEMENTS: tuple[Element, ...] = get_args(Element)


@dataclass(frozen=True, slots=True)
class FloatPanel:
    """Columns of 16 floats, as in the file."""

    element: Element

    @property
    def key(self) -> str:
        return self.element

    @property
    def element_bytes(self) -> int:
        return 4 if self.element == "f32" else 2

    def panel_bytes(self, columns: int) -> int:
        """Bytes of a panel of `columns`."""
        return -(-columns // FLOAT_COLUMNS) * FLOAT_COLUMNS * PANEL_ROWS * self.element_bytes


Panel = IntegerPanel | FloatPanel


def panel_for(form: BlockFormat | FloatFormat) -> Panel:
    """The panel of a quant format: with its bits unchanged, or the smallest one for its unpacked values."""
    if isinstance(form, FloatFormat):
        elements: dict[str, Element] = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
        return FloatPanel(elements[form.name])
    if form.layout is not None:
        layout = form.layout
        scales = _scales_of(layout, form.block_size > form.group)
        columns = form.block_size if scales in ("unit", "e4m3f32") else UNIT_COLUMNS
        halvings = (layout.multiples and layout.multiples.halvings) or 0
        book = layout.entries.book if layout.entries else ""
        bits, levels = layout.code_bits, layout.levels
        return IntegerPanel(bits, form.group, scales, form.has_minimum, levels, columns, halvings, book)
    if form.code_range == (-1, 1) and form.block_size == UNIT_COLUMNS and form.f16_scales:
        return IntegerPanel(0, form.group, "unit", False, (-1, 0, 1), book=TRITS)
    scales = "f16" if form.f16_scales else "f32"
    return IntegerPanel(_bits_for(form.code_range, form.has_minimum), form.group, scales, form.has_minimum)


def plain_panel(panel: IntegerPanel) -> IntegerPanel:
    """A panel of the same values with a byte per code and float32 scales; for panels without minima."""
    assert not panel.has_minimum
    return IntegerPanel(8, panel.group, "f32", has_minimum=False, used_bits=panel.dot_bits)


def _scales_of(layout: BlockLayout, is_shared: bool) -> Scales:
    """`is_shared`: all groups of a block have its scale."""
    if layout.factor is not None:
        return "e4m3f32"
    if layout.multiples is None:
        return "unit" if is_shared and layout.unit == "f16" else layout.unit
    if layout.multiples.halvings is not None:
        return "odd"
    if layout.multiples.signed or layout.multiples.offset:
        return "i8"
    numbers = layout.multiples.scales + layout.multiples.minima
    is_nibble = all(piece.place + piece.width <= 4 for number in numbers for piece in number)
    return "u4" if is_nibble and layout.multiples.minima else "u8"


def _bits_for(code_range: tuple[int, int], has_minimum: bool) -> int:
    """The fewest bits for codes: unsigned if there is a minimum, signed otherwise."""
    low, high = code_range
    fitting = [bits for bits in PLANES if bits < 8 and has_minimum and low >= 0 and high < 1 << bits]
    fitting += [bits for bits in PLANES if not has_minimum and low >= -1 << (bits - 1) and high < 1 << (bits - 1)]
    return min(fitting, default=8)


def pack_codes(panel: IntegerPanel, codes: Codes, out: NDArray[np.uint8]) -> None:
    """Write N rows' unpacked values (N a multiple of 16): out uint8[N / 16, panel_bytes]. The scales are floats."""
    n_rows, columns = codes.codes.shape
    if panel.book == TRITS:
        _pack_ternary(panel, codes, out)
        return
    n_panels, n_blocks = n_rows // PANEL_ROWS, 2 * panel.n_records(columns)
    records = out.reshape(n_panels, n_blocks // 2, panel.record_bytes)
    records[:, :, : panel.minima_at] = _pack_scales(panel, codes.scale, n_blocks)
    if codes.minimum is not None:
        records[:, :, panel.minima_at : panel.codes_at] = _pack_scales(panel, codes.minimum, n_blocks)
    unsigned = np.zeros((n_rows, n_blocks * BLOCK), np.uint8)
    np.add(codes.codes, panel.offset, out=unsigned[:, :columns], casting="unsafe", dtype=np.int16)
    # fours: [panel, record, block, four columns, row, column]
    fours = unsigned.reshape(n_panels, PANEL_ROWS, n_blocks // 2, 2, 8, 4).transpose(0, 2, 3, 4, 1, 5)
    fours = fours.reshape(*fours.shape[:4], 4 * PANEL_ROWS)
    blocks = records[:, :, panel.codes_at :].reshape(n_panels, n_blocks // 2, 2, panel.code_bytes)
    low, at = 0, 0
    for width in PLANES[panel.code_bits]:
        fields = (fours >> low & (1 << width) - 1).reshape(*fours.shape[:3], width, 8 // width, 4 * PANEL_ROWS)
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, np.newaxis]
        stored = np.bitwise_or.reduce(fields << shifts, axis=4)
        blocks[..., at : at + 64 * width] = stored.reshape(*stored.shape[:3], 64 * width)
        low, at = low + width, at + 64 * width


def _pack_ternary(panel: IntegerPanel, codes: Codes, out: NDArray[np.uint8]) -> None:
    """`pack_codes` for five codes to a byte: whole records."""
    n_rows, columns = codes.codes.shape
    n_panels, n_records = n_rows // PANEL_ROWS, columns // UNIT_COLUMNS
    records = out.reshape(n_panels, n_records, panel.record_bytes)
    units = np.ascontiguousarray(codes.scale[:, :: UNIT_COLUMNS // panel.group].astype(np.float16))
    units = units.reshape(n_panels, PANEL_ROWS, n_records).transpose(0, 2, 1)
    records[:, :, :UNIT_BYTES] = np.ascontiguousarray(units).view(np.uint8)
    digits = (codes.codes + np.int8(1)).view(np.uint8)
    fours = digits.reshape(n_panels, PANEL_ROWS, n_records, 4, trits.FOURS, 4).transpose(0, 2, 3, 4, 1, 5)
    trits.pack_trits(fours.reshape(*fours.shape[:4], trits.VECTOR), records[:, :, panel.codes_at :])


def _pack_scales(panel: IntegerPanel, scales: NDArray[np.float32], n_blocks: int) -> NDArray[np.uint8]:
    """Scales of each group, 16 rows together: uint8[n_panels, n_records, 2 * groups * scale_bytes]."""
    n_rows, n_groups = scales.shape
    padded = np.zeros((n_rows, n_blocks * panel.groups), np.float16 if panel.scales == "f16" else np.float32)
    padded[:, :n_groups] = scales
    grouped = padded.reshape(n_rows // PANEL_ROWS, PANEL_ROWS, n_blocks // 2, -1).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(grouped).reshape(*grouped.shape[:2], -1).view(np.uint8)
