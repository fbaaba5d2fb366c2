"""How much work a pass is: weight bytes read, KV bytes read and multiply-adds, counted from the spec alone.

In: a ModelSpec, the tensor table of a header, and the shape of a pass. Out: a `PassWork`. Used by the null device and
by planning; nothing is read or computed, so counting a 100 GB model takes milliseconds. Experts count as far as the
tokens of a pass are expected to use them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Cost, MatMulCost
from edgeinfer.graph.operands import Weight
from edgeinfer.models.gguf import TensorInfo


@dataclass(frozen=True, slots=True)
class PassWork:
    """Bytes of weights and of cached keys and values read, and multiply-adds done."""

    weight_bytes: int = 0
    kv_bytes: int = 0
    multiply_adds: int = 0

    def __add__(self, other: PassWork) -> PassWork:
        return PassWork(
            self.weight_bytes + other.weight_bytes,
            self.kv_bytes + other.kv_bytes,
            self.multiply_adds + other.multiply_adds,
        )


def weight_bytes(weight: Weight, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes in the file of a weight's rows."""
    info = tensors[weight.tensor]
    return info.nbytes * weight.n_rows * weight.columns // math.prod(info.shape)


def unread_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_tokens: int) -> float:
    """Bytes in the file of expert weights that no token of a pass is expected to use."""
    products = [each for op in spec.ops() for each in op.cost.products]
    return sum(products_bytes(each, tensors) * (1.0 - each.share_read(n_tokens)) for each in products)


def products_bytes(products: MatMulCost, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes in the file of the matrices of products."""
    return products.experts * weight_bytes(products.weight, tensors)


def pass_work(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_tokens: int, n_cached: int, n_outputs: int = 1
) -> PassWork:
    """Work of a pass of `n_tokens` after `n_cached` cached tokens, with logits for `n_outputs` of them."""
    total, n_rows = PassWork(), n_tokens
    for op in spec.ops():
        n_rows = n_outputs if op.takes_outputs else n_rows
        total += _work_of(op.cost, tensors, n_rows, n_cached)
    return total


def _work_of(cost: Cost, tensors: Mapping[str, TensorInfo], n_rows: int, n_cached: int) -> PassWork:
    read = sum(weight_bytes(weight, tensors) for weight in cost.vectors)
    read += sum(n_rows * (weight_bytes(weight, tensors) // weight.n_rows) for weight in cost.gathered)
    read += round(sum(products_bytes(each, tensors) * each.share_read(n_rows) for each in cost.products))
    multiply_adds, kv_bytes = sum(each.multiply_adds(n_rows) for each in cost.products), 0
    if cost.attention is not None:
        kv_bytes = round(cost.attention.kv_bytes_per_token() * cost.attention.reach(n_rows, n_cached))
        multiply_adds += round(cost.attention.multiply_adds(n_rows, n_cached))
    return PassWork(read, kv_bytes, multiply_adds)
