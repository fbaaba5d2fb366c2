"""Writing keys and values into KV pages, as float16, or rotated and rounded to 8 or 4 bits with scales.

Memory: key and value float32[n, stride / 4], heads a `head_stride` apart and padded to whole vectors; pages as
`layout.pages` lays them out. Twins: the pages hold the same numbers as float16, or as `backends.meanings.rotated` and
`round_numbers` make them. A scale is largest / 127 or largest / 7.5, limited to the largest float16, so blocks with
larger numbers than that allows are scaled down to that size and nothing becomes infinite or NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types

from edgeinfer.backends.cpu.kernels.attention.forms import has_small_keys, has_small_values
from edgeinfer.backends.cpu.kernels.attention.hadamard import rotate
from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import page_in_place
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.attention_records import STORE_KV
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES
from edgeinfer.backends.cpu.layout.rounded import SMALLEST
from edgeinfer.backends.meanings import MIDDLE, MOST_ROTATED
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(STORE_KV)

LARGEST_HALF = 65504.0
ROTATED_BYTES = MOST_ROTATED * 4
SIGN_BITS = -0x7F7F7F80
"""0x80808080 as an int32: turns four signed bytes into bytes of code + 128."""


@inline
def store_halves(args, key, value, keys, values, offset):
    """Write one key and one value into a float16 page."""
    keys += offset * 2
    values += offset * args.value_head_stride // 2
    for index in range(args.key_width):
        simd.store_half(keys + index * PAGE * 2, simd.load_float(key + index * 4))
    for index in range(0, args.value_head_stride // 4, LANES):
        simd.store_halves(values + index * 2, simd.load(value + index * 4))


@simd.operation(types.void, simd.ADDRESS, simd.FLOATS, simd.FLOATS)
def store_nibbles(builder, address, low, high):
    """Write 2 * 16 floats, -8 up to below 8, rounded down, as codes 0..15: the first 16 in the low half of bytes."""
    codes = []
    for values in (low, high):
        down = builder.fptosi(emit.call(builder, "llvm.floor.v16f32", emit.F32S, [values]), emit.I32S)
        codes.append(builder.add(down, emit.repeated(emit.I32S, 8)))
    both = builder.or_(codes[0], builder.shl(codes[1], emit.repeated(emit.I32S, 4)))
    emit.store(builder, builder.trunc(both, ir.VectorType(emit.I8, emit.LANES)), address)


@inline
def inverse_scale(largest, most, scale):
    """Store largest / most as float16 at `scale`; returns most / largest, or zero."""
    inverse = np.float32(0.0)
    if largest >= np.float32(SMALLEST):
        inverse = most / largest
    simd.store_half(scale, min(largest / most, np.float32(LARGEST_HALF)))
    return simd.splat(inverse)


@inline
def round_block(low, high, codes, scale):
    """Round 32 floats: int8[32] to `codes`, float16 to `scale`."""
    largest = simd.max_lanes(simd.maximum(simd.absolute(low), simd.absolute(high)))
    factor = inverse_scale(largest, np.float32(127.0), scale)
    simd.store_rounded(codes, simd.mul(low, factor))
    simd.store_rounded(codes + 16, simd.mul(high, factor))


@inline
def round_halves(low, high, codes, scale):
    """Round 2 * 16 floats: uint8[16] to `codes`, float16 to `scale` and PAGE numbers further on."""
    first = inverse_scale(simd.max_lanes(simd.absolute(low)), np.float32(MIDDLE), scale)
    last = inverse_scale(simd.max_lanes(simd.absolute(high)), np.float32(MIDDLE), scale + PAGE * 2)
    store_nibbles(codes, simd.mul(low, first), simd.mul(high, last))


@inline
def round_head(is_small, is_key, source, width, padded_bytes, page, offset):
    """Rotate and round a head into position `offset` of a page's keys or values.

    As many columns at a time as are rotated together, at least a block; what lies beyond the padded head counts as 0.
    """
    turned, codes = simd.stack_space(ROTATED_BYTES), simd.stack_space(BLOCK)
    code_bytes, n_scales = BLOCK, 1
    if is_small:
        code_bytes, n_scales = BLOCK // 2, 2
    scales = page + PAGE * code_bytes * ((width + BLOCK - 1) // BLOCK) + offset * 2
    chunk = max(min(width & -width, MOST_ROTATED), BLOCK) * 4
    for start in range(0, padded_bytes, chunk):
        end = min(start + chunk, padded_bytes)
        rotate(source + start, (end - start) // 4, width, np.float32(1.0), turned)
        for at in range(start, end, BLOCK * 4):
            block = at // (BLOCK * 4)
            low, high = simd.load(turned + at - start), simd.splat(np.float32(0.0))
            if at + LANES * 4 < end:
                high = simd.load(turned + at - start + LANES * 4)
            to, scale = page + (block * PAGE + offset) * code_bytes, scales + block * n_scales * PAGE * 2
            if is_key:
                to = codes
            if is_small:
                round_halves(low, high, to, scale)
            else:
                round_block(low, high, to, scale)
            if is_key:
                to = page + block * PAGE * code_bytes + offset * 4
                for four in range(0, code_bytes, 4):
                    word = simd.load_int32(codes + four)
                    if not is_small:
                        word ^= SIGN_BITS
                    simd.store_int32(to + four * PAGE, word)


@inline
def store_one(kind, args, step, token, head):
    """Write the key and the value of a token and head into the token's slot."""
    slot = simd.load_int32(step.slots + 4 * token)
    key = args.key + token * args.key_stride + head * args.key_head_stride
    value = args.value + token * args.value_stride + head * args.value_head_stride
    keys, values = page_in_place(args, head, slot // PAGE)
    if kind is None:
        store_halves(args, key, value, keys, values, slot % PAGE)
    else:
        small_keys, small_values = has_small_keys(kind), has_small_values(kind)
        round_head(small_keys, True, key, args.key_width, args.key_head_stride, keys, slot % PAGE)
        round_head(small_values, False, value, args.value_width, args.value_head_stride, values, slot % PAGE)


def store(kind: str | None) -> Callable[..., None]:
    """The kernel for a kind of rounded pages, or, if `kind` is None, for float16 pages."""

    def store_kv(pointer, worker, work_split):
        """Write keys and values into the tokens' slots.

        Work is split by heads, so that each cache line has one worker. Small passes of several sequences are split by
        tokens and heads, as attention is then: each worker finds in its own caches what it reads next.
        """
        args = arguments_at(pointer)
        step = step_at(args.step)
        n_tokens, n_heads = step.n_tokens, args.kv_heads
        if step.split != 0 and step.n_tiles > 1:
            n_tasks = n_tokens * n_heads
            for task in range(share_start(work_split, worker, n_tasks), share_start(work_split, worker + 1, n_tasks)):
                store_one(kind, args, step, task // n_heads, task % n_heads)
        else:
            for head in range(share_start(work_split, worker, n_heads), share_start(work_split, worker + 1, n_heads)):
                for token in range(n_tokens):
                    store_one(kind, args, step, token, head)

    return store_kv
