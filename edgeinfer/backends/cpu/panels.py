"""Panels: how weight matrices lie in memory for the product kernels.

A panel is 16 rows (one per vector lane). An integer panel is one stream of records of RECORD_COLUMNS columns,
[scales][minima][codes], 64-byte aligned, so that a product reads memory strictly forward; codes are interleaved four
columns at a time, so one load feeds all 16 rows. A float panel is the columns one after the other. Every quant format
converts to one of a few panels without losing a bit. In: exact codes or raw floats. Out: uint8[n_panels, panel_bytes].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants import BlockFormat, Codes, FloatFormat

PANEL_ROWS = 16
BLOCK = 32
RECORD_COLUMNS = 2 * BLOCK
FLOAT_COLUMNS = 4
"""Columns of a float panel come in multiples of this: one per chain of the product kernel."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class IntegerPanel:
    """Codes of 4 bits (0..15, less 8 where there is no minimum) or 8 bits (0..255, less 128).

    `group`: columns that share a scale (32 or 16). Scales and minima are float16 where that is exact, else float32.
    """

    code_bits: int
    group: int
    half_scales: bool
    has_minimum: bool

    @property
    def key(self) -> str:
        """A name for kernels and messages: `parse` reads it back."""
        return f"i{self.code_bits}-{self.group}-{'f16' if self.half_scales else 'f32'}{'-min' * self.has_minimum}"

    @classmethod
    def parse(cls, key: str) -> IntegerPanel:
        """The panel of a key."""
        bits, group, scales, *minimum = key.split("-")
        return cls(int(bits[1:]), int(group), scales == "f16", bool(minimum))

    @property
    def offset(self) -> int:
        """What is added to a code to store it unsigned."""
        if self.code_bits == 8:
            return 128
        return 0 if self.has_minimum else 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one group of 16 rows."""
        return PANEL_ROWS * (2 if self.half_scales else 4)

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return BLOCK // self.group

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one block of 16 rows."""
        return PANEL_ROWS * BLOCK * self.code_bits // 8

    @property
    def minima_at(self) -> int:
        """Byte offset of the minima in a record."""
        return 2 * self.groups * self.scale_bytes

    @property
    def codes_at(self) -> int:
        """Byte offset of the codes in a record."""
        return self.minima_at * (2 if self.has_minimum else 1)

    @property
    def record_bytes(self) -> int:
        return self.codes_at + 2 * self.code_bytes

    def n_records(self, columns: int) -> int:
        """Records of a row of `columns`."""
        return -(-columns // RECORD_COLUMNS)

    def panel_bytes(self, columns: int) -> int:
        """Bytes of a panel of `columns`."""
        return self.n_records(columns) * self.record_bytes


@dataclass(frozen=True, slots=True)
class FloatPanel:
    """Columns of 16 floats as they are in the file."""

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
    """The smallest panel that holds a quant format exactly."""
    if isinstance(form, FloatFormat):
        elements: dict[str, Literal["f16", "bf16", "f32"]] = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
        return FloatPanel(elements[form.name])
    low, high = form.code_range
    nibbles = (low >= 0 and high <= 15) if form.has_minimum else (low >= -8 and high <= 7)
    return IntegerPanel(4 if nibbles else 8, form.group, form.f16_scales, form.has_minimum)


def pack_integers(panel: IntegerPanel, codes: Codes, out: Bytes) -> None:
    """Write exact codes of N rows (a multiple of 16) into panels: out uint8[N / 16, panel_bytes]."""
    n_rows, columns = codes.codes.shape
    n_panels, n_blocks = n_rows // PANEL_ROWS, 2 * panel.n_records(columns)
    records = out.reshape(n_panels, n_blocks // 2, panel.record_bytes)
    records[:, :, : panel.minima_at] = _pack_scales(panel, codes.scale, n_blocks)
    if codes.minimum is not None:
        records[:, :, panel.minima_at : panel.codes_at] = _pack_scales(panel, codes.minimum, n_blocks)
    unsigned = np.zeros((n_rows, n_blocks * BLOCK), np.uint8)
    np.add(codes.codes, panel.offset, out=unsigned[:, :columns], casting="unsafe", dtype=np.int16)
    rows = unsigned.reshape(n_panels, PANEL_ROWS, n_blocks // 2, 2, -1, 4)
    if panel.code_bits == 4:
        rows = rows[..., :4, :] | np.left_shift(rows[..., 4:, :], 4, dtype=np.uint8)
    interleaved = rows.transpose(0, 2, 3, 4, 1, 5)
    records[:, :, panel.codes_at :].reshape(interleaved.shape)[...] = interleaved


def _pack_scales(panel: IntegerPanel, scales: NDArray[np.float32], n_blocks: int) -> Bytes:
    """Scales of each group, 16 rows together: uint8[n_panels, n_records, 2 * groups * scale_bytes]."""
    n_rows, n_groups = scales.shape
    padded = np.zeros((n_rows, n_blocks * panel.groups), np.float16 if panel.half_scales else np.float32)
    padded[:, :n_groups] = scales
    grouped = padded.reshape(n_rows // PANEL_ROWS, PANEL_ROWS, n_blocks // 2, -1).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(grouped).reshape(*grouped.shape[:2], -1).view(np.uint8)


def pack_floats(panel: FloatPanel, raw: Bytes, columns: int, out: Bytes) -> None:
    """Write N rows (a multiple of 16) of raw floats into panels: raw uint8[N, columns * element_bytes]."""
    element = np.dtype(np.uint16 if panel.element_bytes == 2 else np.uint32)
    rows = raw.view(element).reshape(-1, PANEL_ROWS, columns)
    out.view(element).reshape(len(rows), -1, PANEL_ROWS)[:, :columns] = rows.transpose(0, 2, 1)
