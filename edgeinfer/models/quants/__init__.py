"""Quant formats, one file each: block layout and reference values in NumPy.

In: the raw bytes of a tensor's rows as GGUF stores them. Out: integer codes with their scales, or float32 values. A
format's key is its lower-case ggml name, so a new file here is found, read and tested without other edits. Independent
of where the bytes come from and of how a device lays them out.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.models.gguf.header import GGML_TYPES, SCALED_TYPES, type_name
from edgeinfer.models.quants._codebook import book as code_book
from edgeinfer.models.quants._format import BlockFormat, Codes, FloatFormat, QuantFormat
from edgeinfer.models.quants._layout import BitPiece, BlockLayout, BookEntries, Number, Plane
from edgeinfer.registry import Registry

__all__ = [
    "FORMATS",
    "BitPiece",
    "BlockFormat",
    "BlockLayout",
    "BookEntries",
    "Codes",
    "FloatFormat",
    "Number",
    "Plane",
    "QuantFormat",
    "code_book",
    "decode_rows",
    "dequantise",
    "format_of",
]

FORMATS: Registry[QuantFormat] = Registry(
    "edgeinfer.models.quants", "FORMAT", "quant format", skip=("_bits", "_codebook", "_format", "_layout")
)

_CHUNK_WEIGHTS = 1 << 20


def format_of(ggml_type: int) -> QuantFormat:
    """The format of a ggml tensor type id. Raises UnsupportedModel, listing the readable formats.

    Built-in formats are imported by name; the whole registry is loaded only for an id that none of them has.
    """
    known = GGML_TYPES.get(ggml_type) or next((kind for kind in SCALED_TYPES if kind.id == ggml_type), None)
    if known is not None:
        module_name = f"{__name__}.{known.name.lower()}"
        if module_name in sys.modules or importlib.util.find_spec(module_name) is not None:
            found: QuantFormat = importlib.import_module(module_name).FORMAT
            return found
    entries = FORMATS.entries().values()
    for entry in entries:
        if entry.ggml_type == ggml_type:
            return entry
    in_files = sorted((entry for entry in entries if entry.ggml_type >= 0), key=lambda entry: entry.ggml_type)
    readable = ", ".join(entry.name for entry in in_files)
    raise UnsupportedModel(f"weights of {type_name(ggml_type)} (ggml type {ggml_type}) cannot be read; use: {readable}")


def decode_rows(raw: NDArray[np.uint8], form: QuantFormat) -> NDArray[np.float32]:
    """The values of whole rows, uint8[N, row_bytes], as a new array float32[N, K]: `dequantise` without checks."""
    if isinstance(form, FloatFormat):
        return form.decode(raw)
    codes = form.unpack(raw)
    values = np.empty(codes.codes.shape, np.float32)
    codes.write_values(values)
    return values


def dequantise(raw: NDArray[np.uint8], shape: tuple[int, ...], ggml_type: int) -> NDArray[np.float32]:
    """The values of a tensor, float32[shape], as a new array.

    `raw` contains the tensor's bytes (uint8, any shape), `shape` has rows first; a row is `shape[-1]` weights. Raises
    UnsupportedModel for an unknown type, BadGGUF if the bytes do not match the shape. Source: ggml-quants.c, in the
    operation order of the gguf package (float32 throughout, equal bit for bit).
    """
    form = format_of(ggml_type)
    columns = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    row_bytes, rest = divmod(columns * form.block_bytes, form.block_size)
    if rest or columns % form.block_size or raw.size != rows * row_bytes:
        raise BadGGUF(
            f"{raw.size} bytes do not hold a {form.name} tensor of shape {shape}: "
            f"rows are blocks of {form.block_size} weights, {form.block_bytes} bytes each"
        )
    values = np.empty((rows, columns), np.float32)
    raw = raw.reshape(rows, row_bytes)
    chunk_rows = max(1, _CHUNK_WEIGHTS // max(1, columns))
    for first in range(0, rows, chunk_rows):
        chunk = slice(first, first + chunk_rows)
        if isinstance(form, FloatFormat):
            values[chunk] = form.decode(raw[chunk])
        else:
            form.unpack(raw[chunk]).write_values(values[chunk])
    return values.reshape(shape)
