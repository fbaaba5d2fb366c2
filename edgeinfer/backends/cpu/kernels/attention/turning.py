"""Copying cached keys and values to other positions; keys turn by the distance, as rotary embeddings do.

Memory: pages as `layout.pages` lays them out; for each layer a TURNED_LAYER record, whose cosines and sines are those
of the distance. Pairs of slots are taken in order, so the target of one may be the source of an earlier one. Columns
`first` to `first + 2 * half` of each key turn, in pairs (i, i + half). Rounded keys are decoded, rotated back by
`hadamard`, turned, and stored as new keys are; layers in which nothing turns keep their codes. Twin:
`graph.key_turns.turned_keys` on what pages hold, rounded as `backends.meanings` has it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from edgeinfer.backends.cpu.kernels.attention.forms import has_small_keys
from edgeinfer.backends.cpu.kernels.attention.hadamard import rotate
from edgeinfer.backends.cpu.kernels.attention.slots import copy_rounded, copy_rounded_values, page_in_place
from edgeinfer.backends.cpu.kernels.attention.store import SIGN_BITS, round_head
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.attention_records import TURN_KEYS, TURNED_LAYER
from edgeinfer.backends.cpu.layout.padding import BLOCK, LANES, WIDEST_TURNED
from edgeinfer.graph.step import PAGE
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline

arguments_at, turned_layer_at = simd.record_at(TURN_KEYS), simd.record_at(TURNED_LAYER)
LAYER_BYTES = TURNED_LAYER.itemsize
ROW = PAGE * 2
"""Bytes of a column of a page's float16 keys."""
HEAD_BYTES = WIDEST_TURNED * 4
VECTOR_BYTES = LANES * 2
CODES = ir.VectorType(emit.I8, LANES)


@simd.operation(simd.FLOATS, simd.ADDRESS)
def load_codes(builder, address):
    """int8[16] as floats."""
    return builder.sitofp(builder.sext(emit.load(builder, address, CODES), emit.I32S), emit.F32S)


@simd.operation(simd.FLOATS, simd.ADDRESS)
def load_low_levels(builder, address):
    """The levels of the low four bits of uint8[16]."""
    return emit.levels(builder, builder.zext(emit.load(builder, address, CODES), emit.I32S), 0)


@simd.operation(simd.FLOATS, simd.ADDRESS)
def load_high_levels(builder, address):
    """The levels of the high four bits of uint8[16]."""
    return emit.levels(builder, builder.zext(emit.load(builder, address, CODES), emit.I32S), 1)


@simd.operation(simd.FLOATS, simd.ADDRESS)
def splat_half(builder, address):
    """One float16 in all lanes."""
    return emit.splat(builder, builder.fpext(emit.load(builder, address, emit.F16, align=2), emit.F32))


@inline
def copy_halves_of(target, source, count):
    """Copy float16[count]."""
    whole = count // 8 * 16
    for at in range(0, whole, 16):
        simd.copy_16_bytes(target + at, source + at)
    for at in range(whole, count * 2, 2):
        simd.copy_2_bytes(target + at, source + at)


@inline
def turn_halves(args, keys, to_keys, count):
    """Turn neighbouring positions of float16 pages; the addresses are those of the first one's column 0.

    The last vector of a column may read past its positions, within the pages of the layer.
    """
    for column in range(args.key_width):
        if column < args.first or column >= args.first + 2 * args.half:
            copy_halves_of(to_keys + column * ROW, keys + column * ROW, count)
    rest = simd.stack_space(VECTOR_BYTES)
    for pair in range(args.half):
        cos = simd.splat(simd.load_float(args.cosines + pair * 4))
        sin = simd.splat(simd.load_float(args.sines + pair * 4))
        first, second = (args.first + pair) * ROW, (args.first + args.half + pair) * ROW
        for place in range(0, count, LANES):
            x, y = simd.load_halves(keys + first + place * 2), simd.load_halves(keys + second + place * 2)
            turned_x = simd.sub(simd.mul(x, cos), simd.mul(y, sin))
            turned_y = simd.add(simd.mul(x, sin), simd.mul(y, cos))
            to_first, to_second = to_keys + first + place * 2, to_keys + second + place * 2
            if count - place >= LANES:
                simd.store_halves(to_first, turned_x)
                simd.store_halves(to_second, turned_y)
            else:
                simd.store_halves(rest, turned_x)
                copy_halves_of(to_first, rest, count - place)
                simd.store_halves(rest, turned_y)
                copy_halves_of(to_second, rest, count - place)


@inline
def load_rounded(is_small, keys, width, padded, place, head):
    """Decode the key at a position of a rounded page, still rotated; columns from its width on are zeros."""
    codes, code_bytes, n_scales = simd.stack_space(BLOCK), BLOCK, 1
    if is_small:
        code_bytes, n_scales = BLOCK // 2, 2
    blocks = (width + BLOCK - 1) // BLOCK
    scales = keys + PAGE * code_bytes * blocks + place * 2
    for block in range(blocks):
        words = keys + block * PAGE * code_bytes + place * 4
        for four in range(0, code_bytes, 4):
            word = simd.load_int32(words + four * PAGE)
            if not is_small:
                word ^= SIGN_BITS
            simd.store_int32(codes + four, word)
        scale, to = scales + block * n_scales * PAGE * 2, head + block * BLOCK * 4
        if is_small:
            simd.store(to, simd.mul(load_low_levels(codes), splat_half(scale)))
            simd.store(to + LANES * 4, simd.mul(load_high_levels(codes), splat_half(scale + PAGE * 2)))
        else:
            simd.store(to, simd.mul(load_codes(codes), splat_half(scale)))
            simd.store(to + LANES * 4, simd.mul(load_codes(codes + LANES), splat_half(scale)))
    for column in range(width, padded):
        simd.store_float(head + column * 4, np.float32(0.0))


@inline
def turn_head(args, head):
    """Turn float32[key_width] in place."""
    first, second = head + args.first * 4, head + (args.first + args.half) * 4
    whole = args.half // LANES * LANES * 4
    for at in range(0, whole, LANES * 4):
        x, y = simd.load(first + at), simd.load(second + at)
        cos, sin = simd.load(args.cosines + at), simd.load(args.sines + at)
        simd.store(first + at, simd.sub(simd.mul(x, cos), simd.mul(y, sin)))
        simd.store(second + at, simd.add(simd.mul(x, sin), simd.mul(y, cos)))
    for at in range(whole, args.half * 4, 4):
        x_last, y_last = simd.load_float(first + at), simd.load_float(second + at)
        cos_last, sin_last = simd.load_float(args.cosines + at), simd.load_float(args.sines + at)
        simd.store_float(first + at, x_last * cos_last - y_last * sin_last)
        simd.store_float(second + at, x_last * sin_last + y_last * cos_last)


@inline
def turn_rounded(kind, args, keys, place, to_keys, to_place):
    """Turn the key at a position of a rounded page."""
    head, padded = simd.stack_space(HEAD_BYTES), (args.key_width + LANES - 1) // LANES * LANES
    is_small = has_small_keys(kind)
    load_rounded(is_small, keys, args.key_width, padded, place, head)
    rotate(head, padded, args.key_width, np.float32(1.0), head)
    turn_head(args, head)
    round_head(is_small, True, head, args.key_width, padded * 4, to_keys, to_place)


@inline
def neighbours(sources, targets, place, count):
    """How many pairs from `place` on lie side by side, each within one page."""
    source, target = simd.load_int32(sources + 4 * place), simd.load_int32(targets + 4 * place)
    most, n = min(PAGE - source % PAGE, PAGE - target % PAGE, count - place), 1
    while n < most and simd.load_int32(sources + 4 * (place + n)) == source + n:
        if simd.load_int32(targets + 4 * (place + n)) != target + n:
            break
        n += 1
    return n


@inline
def turn_pairs(kind, args, layer, head):
    """Copy and turn all pairs of slots of a head of a layer."""
    place = layer.start
    while place < args.count:
        count = neighbours(args.sources, args.targets, place, args.count)
        source, target = simd.load_int32(args.sources + 4 * place), simd.load_int32(args.targets + 4 * place)
        keys, values = page_in_place(layer, head, source // PAGE)
        to_keys, to_values = page_in_place(layer, head, target // PAGE)
        at, to = source % PAGE, target % PAGE
        if kind is None:
            turn_halves(layer, keys + at * 2, to_keys + to * 2, count)
            n_bytes = layer.value_padded * 2
            for index in range(0, count * n_bytes, 16):
                simd.copy_16_bytes(to_values + to * n_bytes + index, values + at * n_bytes + index)
        else:
            for number in range(count):
                if layer.half == 0:
                    copy_rounded(kind, layer, keys, values, at + number, to_keys, to_values, to + number)
                else:
                    turn_rounded(kind, layer, keys, at + number, to_keys, to + number)
                    copy_rounded_values(kind, layer, values, at + number, to_values, to + number)
        place += count


def turn_keys(kind: str | None) -> Callable[..., None]:
    """The kernel for a kind of rounded pages, or, if `kind` is None, for float16 pages."""

    def turn(pointer, worker, work_split):
        """Work is split by layers and heads."""
        args = arguments_at(pointer)
        first, number = share_start(work_split, worker, args.n_heads), 0
        stop = share_start(work_split, worker + 1, args.n_heads)
        for place in range(args.n_layers):
            layer = turned_layer_at(args.layers + place * LAYER_BYTES)
            for head in range(layer.kv_heads):
                if first <= number and number < stop:
                    turn_pairs(kind, args, layer, head)
                number += 1

    return turn
