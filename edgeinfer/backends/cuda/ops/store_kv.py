"""Keys and values of new tokens, as float16 or as codes with scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cuda.driver import GpuArray, GpuLaunch
from edgeinfer.backends.cuda.layout import BLOCK, KVForm
from edgeinfer.backends.cuda.ops import Call, CudaOp
from edgeinfer.graph.ops.store_kv import StoreKV

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering


def _calls(lowering: CudaLowering, op: StoreKV) -> list[Call]:
    cache, step = lowering.memory.caches[op.layer], lowering.step
    slots_at = step.window_slots_at if cache.is_limited else step.slots_at
    return [
        _stored(lowering, op.key, cache.key_form, cache.keys, cache.key_scales, slots_at),
        _stored(lowering, op.value, cache.value_form, cache.values, cache.value_scales, slots_at),
    ]


def _stored(lowering: CudaLowering, name: str, form: KVForm, words: GpuArray, scales: GpuArray, slots_at: int) -> Call:
    source, stride = lowering.memory.buffers[name], lowering.stride(name)
    at = (source, lowering.step.array, slots_at)
    width = form.padded_width
    if form.kind == "f16":
        kernel, count = lowering.kernels.get("cache", "store_halves"), form.kv_heads * width // 2
        arguments: tuple[object, ...] = (*at, words, form.kv_heads, form.head_width, width // 2, stride)
    else:
        kernel, count = lowering.kernels.get("cache", "store_codes"), form.kv_heads * width // BLOCK
        arguments = (*at, words, scales, form.kv_heads, form.head_width, width // BLOCK, stride)
    return lambda shape: GpuLaunch(kernel, (lowering.over(count), shape.tokens, 1), lowering.flat, arguments)


OP = CudaOp(_calls)
