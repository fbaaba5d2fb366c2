"""How much work a pass is: weight bytes read, KV bytes read and multiply-adds, counted from the spec alone.

In: a ModelSpec, the tensor table of a header, and the shape of a pass. Out: a `Work`. Used by the null device and by
planning; nothing is read or computed, so a 100 GB model counts in milliseconds. Of experts those are counted that the
tokens of a pass are expected to have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import Attention, Embed, Experts, LayerNorm, MatMul, Op, PositionEmbed, RMSNorm, TakeOutputs, Weight


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes of weights and of cached keys and values that are read, and multiply-adds that are done."""

    weight_bytes: int = 0
    kv_bytes: int = 0
    multiply_adds: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.weight_bytes + other.weight_bytes,
            self.kv_bytes + other.kv_bytes,
            self.multiply_adds + other.multiply_adds,
        )


def weight_bytes(weight: Weight, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of the file that a weight's rows take."""
    info = tensors[weight.tensor]
    return info.nbytes * weight.n_rows * weight.columns // math.prod(info.shape)


def share_read(experts: int, active: int, n_tokens: int) -> float:
    """The share of the experts that `n_tokens` are expected to have, `active` each, all equally likely."""
    return 1.0 - (1.0 - active / experts) ** n_tokens


def unread_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_tokens: int) -> float:
    """Bytes of the file that are weights of experts which no token of a pass is expected to have."""
    ops = [op for op in spec.ops() if isinstance(op, Experts)]
    return sum(_expert_bytes(op, tensors) * (1.0 - share_read(len(op.gate), op.active, n_tokens)) for op in ops)


def _expert_bytes(op: Experts, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of the file that all experts of an op take, all as large as the first."""
    return len(op.gate) * sum(weight_bytes(weight, tensors) for weight in (op.gate[0], op.up[0], op.down[0]))


def pass_work(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], n_tokens: int, n_cached: int, n_outputs: int = 1
) -> Work:
    """Work of one pass of `n_tokens` after `n_cached` cached ones, with logits of `n_outputs` of them."""
    total = Work()
    head = False
    for op in spec.ops():
        head = head or isinstance(op, TakeOutputs)
        total += _op_work(op, tensors, n_outputs if head else n_tokens, n_cached)
    return total


def _op_work(op: Op, tensors: Mapping[str, TensorInfo], n_rows: int, n_cached: int) -> Work:
    match op:
        case Embed() | PositionEmbed():
            row_bytes = weight_bytes(op.weight, tensors) // op.weight.n_rows
            return Work(row_bytes * n_rows, 0, 0)
        case LayerNorm():
            return Work(weight_bytes(op.weight, tensors) + weight_bytes(op.bias, tensors), 0, 0)
        case RMSNorm():
            return Work(weight_bytes(op.weight, tensors), 0, 0)
        case MatMul():
            return Work(weight_bytes(op.weight, tensors), 0, op.weight.n_rows * op.weight.columns * n_rows)
        case Experts():
            n_bytes = _expert_bytes(op, tensors) * share_read(len(op.gate), op.active, n_rows)
            one = sum(each.n_rows * each.columns for each in (op.gate[0], op.up[0], op.down[0]))
            return Work(round(n_bytes), 0, one * op.active * n_rows)
        case Attention():
            reach = n_cached + n_rows if op.window is None else min(op.window + n_rows, n_cached + n_rows)
            seen = sum(min(n_cached + token + 1, op.window or n_cached + token + 1) for token in range(n_rows))
            return Work(0, 4 * op.kv_heads * op.head_width * reach, 2 * op.heads * op.head_width * seen)
        case _:
            return Work()
