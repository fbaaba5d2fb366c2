"""Matrices in the block formats of GGUF files, as the gguf package writes and reads them, or ggml where it cannot.

In: float32 rows, a format. Out: their bytes, and the values that bytes stand for. ggml is llama-cpp-python's library.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Type = gguf.GGMLQuantizationType
LOW_TYPES = (
    *(Type.IQ2_XXS, Type.IQ3_S, Type.IQ1_S, Type.TQ1_0, Type.NVFP4, Type.IQ2_S),
    *(Type.Q1_0, Type.IQ3_XXS, Type.IQ1_M, Type.TQ2_0, Type.IQ2_XS),
)
"""Formats of one to four bits that the gguf package knows."""


def quantise(values: NDArray[np.float32], kind: Type) -> NDArray[np.uint8]:
    """Rows of a matrix in format `kind`: uint8[rows, row_bytes]."""
    try:
        return np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8)
    except NotImplementedError:
        return _quantise_by_ggml(values, kind)


def dequantise(stored: NDArray[np.uint8], kind: Type) -> NDArray[np.float32]:
    """The values of such rows: float32[rows, columns]."""
    try:
        values: NDArray[np.float32] = gguf.quants.dequantize(stored, kind)
    except NotImplementedError:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        values = np.empty((len(stored), stored.shape[1] // block_bytes * block), np.float32)
        read = getattr(_ggml(), f"dequantize_row_{kind.name.lower()}")
        read.restype, read.argtypes = None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        read(stored.ctypes.data, values.ctypes.data, values.size)
    return values


def _ggml() -> ctypes.CDLL:
    import llama_cpp

    return ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))


def _quantise_by_ggml(values: NDArray[np.float32], kind: Type) -> NDArray[np.uint8]:
    quantize = _ggml().ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    out = np.zeros((rows, columns // block * block_bytes), np.uint8)
    source = np.ascontiguousarray(values, np.float32)
    importance = np.ones(columns, np.float32)  # of columns; formats of two bits and fewer ask for it
    weights = importance.ctypes.data if kind in LOW_TYPES else None
    written = quantize(int(kind), source.ctypes.data, out.ctypes.data, 0, rows, columns, weights)
    if written != out.nbytes:
        raise RuntimeError(f"ggml wrote {written} bytes of {kind.name} where {out.nbytes} were expected")
    return out
