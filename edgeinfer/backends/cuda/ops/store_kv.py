"""Keys and values of new tokens, as halves or as codes with scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.driver import Launch
from edgeinfer.backends.cuda.layout import BLOCK
from edgeinfer.backends.cuda.op import Call, CudaOp
from edgeinfer.graph.ops.store_kv import StoreKV

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import Lowering


def _calls(lowering: Lowering, op: StoreKV) -> list[Call]:
    return [_stored(lowering, op, op.key, is_key=True), _stored(lowering, op, op.value, is_key=False)]


def _stored(lowering: Lowering, op: StoreKV, name: str, *, is_key: bool) -> Call:
    cache, source, stride = lowering.memory.caches[op.layer], lowering.memory.buffers[name], lowering.stride(name)
    words, scales = (cache.keys, cache.key_scales) if is_key else (cache.values, cache.value_scales)
    at = (source, lowering.step.array, lowering.step.slots_at)
    width = cache.form.padded_width
    if cache.form.kind == "f16":
        kernel, count = lowering.kernels.get("cache", "store_halves"), op.kv_heads * width // 2
        arguments: tuple[object, ...] = (*at, words, op.kv_heads, op.head_width, width // 2, stride)
    else:
        kernel, count = lowering.kernels.get("cache", "store_codes"), op.kv_heads * width // BLOCK
        arguments = (*at, words, scales, op.kv_heads, op.head_width, width // BLOCK, stride)
    return lambda shape: Launch(kernel, (lowering.over(count), shape.tokens, 1), lowering.flat, arguments)


OP = CudaOp(_calls)
