"""Rows of random blocks of any quant format, with values of ordinary size, and a matrix of them as a file holds it."""

from __future__ import annotations

from types import TracebackType

import gguf
import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import BlockFormat, QuantFormat, decode_rows


def ordinary_rows(form: BlockFormat, n_rows: int, columns: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random rows uint8[n_rows, row_bytes]; blocks are drawn again until all their values are of ordinary size."""
    blocks: list[NDArray[np.uint8]] = []
    while len(blocks) < n_rows * columns // form.block_size:
        block = rng.integers(0, 256, (1, form.block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            values = decode_rows(block, form)
        if np.isfinite(values).all() and 1e-3 < np.abs(values).max() < 1e3:
            blocks.append(block)
    return np.concatenate(blocks).reshape(n_rows, -1)


def exact_values(raw: NDArray[np.uint8], form: QuantFormat) -> NDArray[np.float32]:
    """The values of rows by the gguf package; by `models.quants`, which is tested against ggml, where that cannot."""
    try:
        values: NDArray[np.float32] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(form.ggml_type))
    except (NotImplementedError, ValueError):
        values = decode_rows(raw, form)
    return values


class OneMatrix:
    """What a `GGUFFile` with one matrix offers, for formats that no package writes."""

    def __init__(self, name: str, form: QuantFormat, raw: NDArray[np.uint8], columns: int) -> None:
        self.tensors = {name: TensorInfo(name, (len(raw), columns), form.ggml_type, form.name, 0, raw.nbytes, 0)}
        self._raw = raw

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of the matrix."""
        return self._raw.reshape(-1)

    def __enter__(self) -> OneMatrix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""
