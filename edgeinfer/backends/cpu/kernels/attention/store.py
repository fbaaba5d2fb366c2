"""Writing keys and values into KV pages, as float16 or rounded to int8 with a scale per position and 32 columns.

Memory: key and value float32[n, stride / 4], heads a `head_stride` apart and padded to whole vectors; pages as
`layout.pages` lays them out. Twins: the pages hold the same numbers as float16, or as
`backends.reference.round_cached` rounds them. int8: a scale is largest / 127, limited to the largest float16, so blocks
with numbers beyond 127 * 65504 are scaled down to that size and nothing becomes infinite or NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeinfer.backends.cpu.kernels.attention.rotary import step_at
from edgeinfer.backends.cpu.kernels.attention.slots import page_in_place
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES
from edgeinfer.backends.cpu.layout.pages import VECTORS
from edgeinfer.backends.cpu.layout.records import STORE_KV
from edgeinfer.backends.cpu.layout.rounded import SMALLEST
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

arguments_at = simd.record_at(STORE_KV)

LARGEST_HALF = 65504.0
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


@inline
def round_block(source, has_second, codes, scale):
    """Round 32 floats (the last 16 count as zeros unless `has_second`): int8[32] to `codes`, float16 to `scale`."""
    low, high = simd.load(source), simd.splat(np.float32(0.0))
    if has_second:
        high = simd.load(source + 64)
    largest = simd.max_lanes(simd.maximum(simd.absolute(low), simd.absolute(high)))
    inverse = np.float32(0.0)
    if largest >= np.float32(SMALLEST):
        inverse = np.float32(127.0) / largest
    factor = simd.splat(inverse)
    simd.store_rounded(codes, simd.mul(low, factor))
    simd.store_rounded(codes + 16, simd.mul(high, factor))
    simd.store_half(scale, min(largest / np.float32(127.0), np.float32(LARGEST_HALF)))


@inline
def store_rounded(args, key, value, keys, values, offset):
    """Round one key and one value into an int8 page."""
    codes = simd.stack_space(BLOCK)
    blocks = (args.key_width + BLOCK - 1) // BLOCK
    scales = keys + PAGE * BLOCK * blocks
    for block in range(blocks):
        at, has_second = block * BLOCK * 4, (block * BLOCK + LANES) * 4 < args.key_head_stride
        round_block(key + at, has_second, codes, scales + (block * PAGE + offset) * 2)
        to = keys + block * PAGE * BLOCK + offset * 4
        for vector in range(VECTORS):
            simd.store_int32(to + vector * PAGE * 4, simd.load_int32(codes + vector * 4) ^ SIGN_BITS)
    blocks = (args.value_width + BLOCK - 1) // BLOCK
    scales = values + PAGE * BLOCK * blocks
    for block in range(blocks):
        at, has_second = block * BLOCK * 4, (block * BLOCK + LANES) * 4 < args.value_head_stride
        place = block * PAGE + offset
        round_block(value + at, has_second, values + place * BLOCK, scales + place * 2)


@inline
def store_one(int8, args, step, token, head):
    """Write the key and the value of a token and head into the token's slot."""
    slot = simd.load_int32(step.slots + 4 * token)
    key = args.key + token * args.key_stride + head * args.key_head_stride
    value = args.value + token * args.value_stride + head * args.value_head_stride
    keys, values = page_in_place(args, head, slot // PAGE)
    if int8 is None:
        store_halves(args, key, value, keys, values, slot % PAGE)
    else:
        store_rounded(args, key, value, keys, values, slot % PAGE)


def store(int8: str | None) -> Callable[..., None]:
    """The kernel for float16 pages if `int8` is None, else for int8 pages."""

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
                store_one(int8, args, step, task // n_heads, task % n_heads)
        else:
            for head in range(share_start(work_split, worker, n_heads), share_start(work_split, worker + 1, n_heads)):
                for token in range(n_tokens):
                    store_one(int8, args, step, token, head)

    return store_kv
