"""Weights as devices read them: the raw rows of a `Weight` in the order the op expects.

In: a GGUF file and a Weight. Out: uint8 rows (views where the order allows it) and exact float32 values. Shared by all
devices; independent of panels and compute.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.operands import AlternatingPermutation, AxisPermutation, RopePermutation, Weight
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import dequantise


def row_order(weight: Weight) -> NDArray[np.int64] | None:
    """Indices of a weight's rows in op order, counted from its first row: int64[n_rows]; None if in file order."""
    if isinstance(weight.order, RopePermutation):
        return unpair_order(weight.order, weight.n_rows)
    if isinstance(weight.order, AxisPermutation):
        quarters = np.arange(weight.n_rows).reshape(-1, 4, weight.order.head_width // 4)
        return quarters[:, [2, 0, 3, 1]].reshape(-1)
    if isinstance(weight.order, AlternatingPermutation):
        pairs = np.arange(weight.n_rows).reshape(-1, weight.order.head_width // 4, 2, 2)
        return pairs.transpose(0, 3, 2, 1)[:, :, ::-1].reshape(-1)
    if weight.order is None:
        return None
    starts, part = np.arange(0, weight.stop - weight.start, weight.order.step), np.arange(weight.order.width)
    if weight.order.paired:
        part = part.reshape(-1, 2).T.ravel()
    order: NDArray[np.int64] = (starts[:, None] + part[None, :]).ravel()
    return order


def unpair_order(unpair: RopePermutation, n_rows: int) -> NDArray[np.int64]:
    """Row indices that put the even rows of each head's rotary part before the odd ones: int64[n_rows]."""
    rotary = np.arange(unpair.rotary_width).reshape(-1, 2).T.ravel()
    head = np.concatenate([rotary, np.arange(unpair.rotary_width, unpair.head_width)])
    starts = np.arange(0, n_rows, unpair.head_width)
    order: NDArray[np.int64] = (starts[:, None] + head[None, :]).ravel()
    return order


def tensor_rows(file: GGUFFile, weight: Weight) -> NDArray[np.uint8]:
    """All rows of a matrix's tensor, each as long as the weight's: uint8[n, row_bytes], a view."""
    info = file.tensors[weight.tensor]
    return file.raw(weight.tensor).reshape(math.prod(info.shape) // weight.columns, -1)


def raw_rows(file: GGUFFile, weight: Weight) -> NDArray[np.uint8]:
    """Quantised rows of a matrix in op order: uint8[n_rows, row_bytes]; a view unless the order moves rows."""
    rows = tensor_rows(file, weight)[weight.start : weight.stop]
    order = row_order(weight)
    return rows if order is None else rows[order]


def matrix(file: GGUFFile, weight: Weight) -> NDArray[np.float32]:
    """Exact values of a matrix: float32[n_rows, columns]."""
    info = file.tensors[weight.tensor]
    return dequantise(raw_rows(file, weight), (weight.n_rows, weight.columns), info.ggml_type)


def vector(file: GGUFFile, weight: Weight) -> NDArray[np.float32]:
    """Exact values of a vector (a norm, a bias, the biases of all experts): float32[n_rows]."""
    info = file.tensors[weight.tensor]
    values = dequantise(file.raw(weight.tensor), info.shape, info.ggml_type).reshape(-1)[weight.start : weight.stop]
    order = row_order(weight)
    return values if order is None else values[order]


def rope_factors(file: GGUFFile, table: RopeTable) -> NDArray[np.float32] | None:
    """The tensor that divides the table's frequencies, if the table names one."""
    if table.factors is None:
        return None
    info = file.tensors[table.factors]
    return dequantise(file.raw(table.factors), info.shape, info.ggml_type)
