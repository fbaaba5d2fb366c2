"""Panels: how weight matrices lie in memory for the product kernels.

A panel is 16 rows (one per vector lane). An integer panel is one stream of records of 64 or 256 columns,
[units][scales][minima][codes], so that a product reads memory strictly forward; codes are interleaved four columns at
a time, so one load feeds all 16 rows. A float panel is one column after another. Every quant format has a panel that
holds it without losing a bit, in about as many bytes. In: a quant format. Out: sizes and places; `memory.packing` fills
panels, and `pack_codes` those of formats whose bit layout is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

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
CODES_ALIGNMENT = 32
FLOAT_COLUMNS = 4
"""Columns of a float panel are padded to a multiple of this: one round of the product kernel."""

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""How the bits of a code are split into planes, lowest first."""

Scales: TypeAlias = Literal["f16", "f32", "e8m0", "i8", "u8", "u4"]
"""The kind of scale per group and row: a float; a power of two (byte e: 2 ** (e - 128)); or an integer times the row's
unit, where "u4" stores the minimum's integer in the high half of the scale's byte.
"""
SCALE_BYTES: dict[Scales, int] = {"f16": 2, "f32": 4, "e8m0": 1, "i8": 1, "u8": 1, "u4": 1}


@dataclass(frozen=True, slots=True)
class IntegerPanel:
    """Unsigned codes of `code_bits`; `group` columns (32 or 16) share a scale, and a minimum if there is one.

    `levels`: the values that codes are indices of, if they are indices.
    """

    code_bits: int
    group: int
    scales: Scales
    has_minimum: bool
    levels: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """A name for kernels and messages; the inverse of `parse`."""
        book = "-book" + bytes(level & 0xFF for level in self.levels).hex() if self.levels else ""
        return f"i{self.code_bits}-{self.group}-{self.scales}{'-min' * self.has_minimum}{book}"

    @classmethod
    def parse(cls, key: str) -> IntegerPanel:
        """The panel of a key."""
        bits, group, scales, *rest = key.split("-")
        assert scales in get_args(Scales)
        book = bytes.fromhex(rest.pop().removeprefix("book")) if rest and rest[-1].startswith("book") else b""
        levels = tuple((level ^ 128) - 128 for level in book)
        return cls(int(bits[1:]), int(group), cast("Scales", scales), bool(rest), levels)

    @property
    def offset(self) -> int:
        """The offset of values in products, which are too large by it: a power of two, or 0."""
        if self.levels:
            return 1 << (max(max(self.levels), -1 - min(self.levels)).bit_length())
        if self.code_bits == 8:
            return 128
        return 0 if self.has_minimum else 1 << (self.code_bits - 1)

    @property
    def dot_bits(self) -> int:
        """Bits of the unsigned values in products: codes, or levels plus `offset`."""
        return self.offset.bit_length() if self.levels else self.code_bits

    @property
    def has_units(self) -> bool:
        """Whether scales are integers times a float16 per row and record."""
        return self.scales in ("i8", "u8", "u4")

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return BLOCK // self.group

    @property
    def record_columns(self) -> int:
        return UNIT_COLUMNS if self.has_units else PAIR

    @property
    def record_pairs(self) -> int:
        """Pairs of blocks of a record."""
        return self.record_columns // PAIR

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one group of 16 rows."""
        return PANEL_ROWS * SCALE_BYTES[self.scales]

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one block of 16 rows: plane after plane."""
        return PANEL_ROWS * BLOCK * self.code_bits // 8

    @property
    def scales_at(self) -> int:
        """Byte offset of the scales in a record; before them lie the units of the scales, then of the minima."""
        return UNIT_BYTES * (1 + self.has_minimum) if self.has_units else 0

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


@dataclass(frozen=True, slots=True)
class FloatPanel:
    """Columns of 16 floats, as in the file."""

    element: Literal["f16", "bf16", "f32"]

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
        elements: dict[str, Literal["f16", "bf16", "f32"]] = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
        return FloatPanel(elements[form.name])
    if form.layout is not None:
        layout = form.layout
        return IntegerPanel(layout.code_bits, form.group, _scales_of(layout), form.has_minimum, layout.levels)
    scales: Scales = "f16" if form.f16_scales else "f32"
    return IntegerPanel(_bits_for(form.code_range, form.has_minimum), form.group, scales, form.has_minimum)


def _scales_of(layout: BlockLayout) -> Scales:
    if layout.multiples is None:
        return layout.unit
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


def _pack_scales(panel: IntegerPanel, scales: NDArray[np.float32], n_blocks: int) -> NDArray[np.uint8]:
    """Scales of each group, 16 rows together: uint8[n_panels, n_records, 2 * groups * scale_bytes]."""
    n_rows, n_groups = scales.shape
    padded = np.zeros((n_rows, n_blocks * panel.groups), np.float16 if panel.scales == "f16" else np.float32)
    padded[:, :n_groups] = scales
    grouped = padded.reshape(n_rows // PANEL_ROWS, PANEL_ROWS, n_blocks // 2, -1).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(grouped).reshape(*grouped.shape[:2], -1).view(np.uint8)
