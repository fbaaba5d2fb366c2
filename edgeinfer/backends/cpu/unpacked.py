"""Panels of formats that say nothing of their layout: what a format unpacks to, laid out by NumPy.

In: exact codes. Out: uint8[n_panels, panel_bytes] as `panels` describes it. Several times slower than moving bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.panels import BLOCK, PANEL_ROWS, PLANES, IntegerPanel
from edgeinfer.models.quants import Codes

Bytes = NDArray[np.uint8]


def pack_codes(panel: IntegerPanel, codes: Codes, out: Bytes) -> None:
    """Write what N rows (a multiple of 16) unpack to: out uint8[N / 16, panel_bytes]. The panel's scales are floats."""
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


def _pack_scales(panel: IntegerPanel, scales: NDArray[np.float32], n_blocks: int) -> Bytes:
    """Scales of each group, 16 rows together: uint8[n_panels, n_records, 2 * groups * scale_bytes]."""
    n_rows, n_groups = scales.shape
    padded = np.zeros((n_rows, n_blocks * panel.groups), np.float16 if panel.scales == "f16" else np.float32)
    padded[:, :n_groups] = scales
    grouped = padded.reshape(n_rows // PANEL_ROWS, PANEL_ROWS, n_blocks // 2, -1).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(grouped).reshape(*grouped.shape[:2], -1).view(np.uint8)
