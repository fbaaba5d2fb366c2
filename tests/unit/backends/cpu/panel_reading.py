"""Reading panels back, number by number, as the layout is described: independent of how they are packed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.panels import FloatPanel, IntegerPanel, Panel
from edgeinfer.models.quants import Codes


def read_integers(panel: IntegerPanel, data: NDArray[np.uint8], columns: int) -> Codes:
    """Exact codes of all rows: what records of [scales][minima][codes] say."""
    n_rows = len(data) * 16
    codes = np.zeros((n_rows, columns), np.int8)
    scale = np.zeros((n_rows, columns // panel.group), np.float32)
    minimum = np.zeros_like(scale)
    number = np.float16 if panel.half_scales else np.float32
    for row in range(n_rows):
        lane, stream = row % 16, data[row // 16].tobytes()
        for column in range(columns):
            record = column // 64 * panel.record_bytes
            block, within = column % 64 // 32, column % 32
            if panel.code_bits == 8:
                at = record + panel.codes_at + block * 512 + within // 4 * 64 + lane * 4 + within % 4
                stored = stream[at]
            else:
                at = record + panel.codes_at + block * 256 + within % 16 // 4 * 64 + lane * 4 + within % 4
                stored = stream[at] >> 4 if within >= 16 else stream[at] & 15
            codes[row, column] = stored - panel.offset
            if column % panel.group == 0:
                group = column // panel.group
                size = np.dtype(number).itemsize
                at = record + (block * panel.groups + within // panel.group) * 16 * size + lane * size
                scale[row, group] = np.frombuffer(stream, number, 1, at)[0]
                if panel.has_minimum:
                    minimum[row, group] = np.frombuffer(stream, number, 1, at + panel.minima_at)[0]
    return Codes(codes, scale, minimum if panel.has_minimum else None)


def read_floats(panel: FloatPanel, data: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
    """Values of all rows: columns of 16 one after the other."""
    if panel.element == "bf16":
        numbers = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = data.view(np.float16 if panel.element == "f16" else np.float32).astype(np.float32)
    return numbers.reshape(len(data), -1, 16)[:, :columns].transpose(0, 2, 1).reshape(-1, columns)


def read_values(panel: Panel, data: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
    """float32[rows, columns] of any panel."""
    if isinstance(panel, FloatPanel):
        return read_floats(panel, data, columns)
    values = np.zeros((len(data) * 16, columns), np.float32)
    read_integers(panel, data, columns).write_values(values)
    return values
