"""Weights in the form the GPU's kernels read, packed on the host.

In: raw rows of a GGUF tensor. Out: the bytes of each region of `layout.Form`. Codes and scales keep their exact values.
Independent of where the regions are placed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.cuda.layout import BLOCK, FloatForm, Form, IntegerForm, form_of, padded
from edgeinfer.graph.operands import Weight
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, FloatFormat, Number, format_of

Bytes = NDArray[np.uint8]
CHUNK_WEIGHTS = 1 << 22


def write_matrix(file: GGUFFile, weight: Weight, regions: dict[str, Bytes]) -> Form:
    """Write a 2-D weight into its regions, uint8[bytes] each."""
    quant = format_of(file.tensors[weight.tensor].ggml_type)
    form = form_of(quant)
    rows = {name: region.reshape(weight.n_rows, -1) for name, region in regions.items()}
    raw = weights.raw_rows(file, weight)
    step = max(1, CHUNK_WEIGHTS // weight.columns)
    for first in range(0, weight.n_rows, step):
        part = slice(first, first + step)
        for name, packed in packed_rows(np.ascontiguousarray(raw[part]), quant, form).items():
            rows[name][part] = packed
    return form


def packed_rows(raw: Bytes, quant: BlockFormat | FloatFormat, form: Form) -> dict[str, Bytes]:
    """The regions of some rows: raw uint8[n, row_bytes] -> uint8[n, region bytes per row] each."""
    if isinstance(quant, FloatFormat):
        assert isinstance(form, FloatForm)
        return {"codes": _floats(raw, quant, form)}
    assert isinstance(form, IntegerForm)
    found = quant.unpack(raw)
    result = _codes(found.codes, form)
    if form.scales == "multiple":
        return result | _multiples(raw, quant, form)
    kind = np.float16 if form.scales == "half" else np.float32
    parts = [found.scale, *([] if found.minimum is None else [found.minimum])]
    grouped = [part.reshape(len(raw), -1, BLOCK // form.group) for part in parts]
    return result | {"scales": _bytes(np.concatenate(grouped, axis=2).astype(kind))}


def _bytes(array: NDArray[np.generic]) -> Bytes:
    """An array [n, ...] as uint8[n, bytes]."""
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)


def _floats(raw: Bytes, quant: FloatFormat, form: FloatForm) -> Bytes:
    """Rows of floats, padded."""
    values = raw if quant.block_bytes == form.item_bytes else _bytes(quant.decode(raw))
    row_bytes = padded(values.shape[1] // form.item_bytes) * form.item_bytes
    return np.pad(values, ((0, 0), (0, row_bytes - values.shape[1])))


def _codes(codes: NDArray[np.int8], form: IntegerForm) -> dict[str, Bytes]:
    """Codes in planes: low nibbles of 16 bytes are a block's columns 0-15, high nibbles 16-31; then pairs of high bits.

    Byte i of word w of the high bits holds columns 16 * w + 4 * pair + i, pair after pair from the lowest bits up.
    """
    if form.code_bits == 8:
        return {"codes": _bytes(codes)}
    stored = (codes.astype(np.int16) - form.low).astype(np.uint8).reshape(len(codes), -1, BLOCK)
    low = stored & 0xF
    result = {"codes": _bytes(low[..., :16] | low[..., 16:] << 4)}
    if form.code_bits == 6:
        high = (stored >> 4).reshape(*stored.shape[:2], 2, 4, 4)
        shifts = (2 * np.arange(4, dtype=np.uint8))[:, None]
        result["high"] = _bytes(np.bitwise_or.reduce(high << shifts, axis=3))
    return result


def _multiples(raw: Bytes, quant: BlockFormat, form: IntegerForm) -> dict[str, Bytes]:
    """Scales as int8 multiples of float16 units; the unit of minima is negated, as they are subtracted."""
    layout = quant.layout
    assert layout is not None
    assert layout.multiples is not None
    assert isinstance(layout.scale, int)
    blocks = raw.reshape(len(raw), -1, quant.block_bytes)
    per_block = BLOCK // form.group
    parts = [_numbers(blocks, layout.multiples.scales) - layout.multiples.offset]
    units = [blocks[..., layout.scale : layout.scale + 2]]
    if layout.minimum is not None:
        parts.append(_numbers(blocks, layout.multiples.minima))
        units.append(blocks[..., layout.minimum : layout.minimum + 2] ^ np.array([0, 0x80], np.uint8))
    grouped = [part.astype(np.uint8).reshape(len(raw), -1, per_block) for part in parts]
    return {"scales": _bytes(np.concatenate(grouped, axis=2)), "units": _bytes(np.concatenate(units, axis=2))}


def _numbers(blocks: Bytes, numbers: tuple[Number, ...]) -> NDArray[np.int16]:
    """Integers stored in several bit fields: blocks uint8[n, b, bytes] -> int16[n, b, len(numbers)]."""
    found = np.zeros((*blocks.shape[:2], len(numbers)), np.int16)
    for place, pieces in enumerate(numbers):
        for piece in pieces:
            bits = blocks[..., piece.byte].astype(np.int16) >> piece.shift & (1 << piece.width) - 1
            found[..., place] |= bits << piece.place
    return found
