"""Mixtures of experts: the grouping of a pass's tokens by expert, and products expert by expert.

Memory: shares float32[n, E], zero for experts that the token does not use. A pair is a token and an expert with a share
in it; pairs are numbered expert by expert, within each token by token. Every worker lists them for itself
(`EXPERT_LISTS` says how they lie), so that needs no barrier. Rows of a pair: activations of its token, as int8 records
in the tiles of its expert's tokens (`rounded.tile_of`) or as floats, and its hidden row. Products are those of
`kernels.matmul.integers` and `kernels.matmul.floats`, called once for each expert that has tokens, through a table of
addresses of its panels. NumPy twin: `ops.experts`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.matmul.activations import round_row, tile_of, tiled_tokens
from edgeinfer.backends.cpu.kernels.matmul.integers import activated
from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.chosen_records import (
    EXPERT_HIDDEN,
    EXPERT_LISTS,
    EXPERT_PRODUCTS,
)
from edgeinfer.backends.cpu.layout.records import FLOAT_PRODUCT, PLAIN, PRODUCT, ROUND_ROWS, SWIGLU_OAI
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

lists_at, products_at, hidden_at = (simd.record_at(kind) for kind in (EXPERT_LISTS, EXPERT_PRODUCTS, EXPERT_HIDDEN))
product_at, float_product_at, rounding_at = (simd.record_at(kind) for kind in (PRODUCT, FLOAT_PRODUCT, ROUND_ROWS))
PRODUCT_BYTES = PRODUCT.itemsize


@inline
def counts_at(lists, n_experts):
    """int64[E]: tokens of each expert."""
    return lists + 8 + 8 * n_experts


@inline
def starts_at(lists, n_experts):
    """int64[E]: the first pair of each expert that has tokens."""
    return lists + 8 + 16 * n_experts


@inline
def tokens_at(lists, n_experts):
    """int32[pairs]: the token of each pair."""
    return lists + 8 + 24 * n_experts


@inline
def shares_at(lists, n_experts, most_pairs):
    """float32[pairs]: the share of each pair."""
    return lists + 8 + 24 * n_experts + 4 * most_pairs


@inline
def list_pairs(args, lists, shares, count):
    """Fill a worker's lists; returns the number of pairs."""
    n_busy, n_pairs = 0, 0
    tokens, found = tokens_at(lists, args.n_experts), shares_at(lists, args.n_experts, args.most_pairs)
    for expert in range(args.n_experts):
        start = n_pairs
        for token in range(count):
            share = simd.load_float(shares + token * args.shares_stride + 4 * expert)
            if share != np.float32(0.0) and n_pairs < args.most_pairs:
                simd.store_int32(tokens + 4 * n_pairs, token)
                simd.store_float(found + 4 * n_pairs, share)
                n_pairs += 1
        if n_pairs > start:
            simd.store_int64(lists + 8 + 8 * n_busy, expert)
            simd.store_int64(counts_at(lists, args.n_experts) + 8 * expert, n_pairs - start)
            simd.store_int64(starts_at(lists, args.n_experts) + 8 * expert, start)
            n_busy += 1
    simd.store_int64(lists, n_busy)
    return n_pairs


@inline
def copy_vectors(target, target_step, source, source_step, count):
    """Copy some vectors that lie that many bytes apart."""
    for _ in range(count):
        simd.store(target, simd.load(source))
        target, source = target + target_step, source + source_step


@inline
def gather_pair(args, token, count, n_tiled, pair, place, n_tokens):
    """Copy a token's activations to the place of a pair among the tokens of its expert."""
    if args.records != 0:
        start, size = tile_of(token, count, n_tiled)
        source = args.records + (start * args.n_padded + token - start) * RECORD_BYTES
        first, width = tile_of(place, n_tokens, 0)
        target = args.gathered + ((pair - place + first) * args.n_padded + place - first) * RECORD_BYTES
        copy_vectors(target, width * RECORD_BYTES, source, size * RECORD_BYTES, args.n_padded)
    if args.floats != 0:
        target, source = args.gathered_floats + pair * args.float_stride, args.floats + token * args.float_stride
        copy_vectors(target, 64, source, 64, args.float_stride // 64)


def group(pointer, worker, work_split):
    """List the pairs and gather each worker's share of their activations; those of a lone token stay where they are."""
    args = lists_at(pointer)
    lists, count = args.lists + worker * args.lists_stride, simd.load_int64(args.count)
    n_pairs = list_pairs(args, lists, args.shares + worker * args.shares_own_stride, count)
    if args.records == 0 and args.floats == 0:
        return
    n_tiled = tiled_tokens(count) * args.tiled
    first, stop = share_start(work_split, worker, n_pairs), share_start(work_split, worker + 1, n_pairs)
    for busy in range(simd.load_int64(lists)):
        expert = simd.load_int64(lists + 8 + 8 * busy)
        start = simd.load_int64(starts_at(lists, args.n_experts) + 8 * expert)
        n_tokens = simd.load_int64(counts_at(lists, args.n_experts) + 8 * expert)
        for pair in range(max(first, start), min(stop, start + n_tokens)):
            token = simd.load_int32(tokens_at(lists, args.n_experts) + 4 * pair)
            gather_pair(args, token, count, n_tiled, pair, pair - start, n_tokens)


@inline
def point(args, record, lists, expert):
    """Fill an expert's fields, except for its weights, into the record of a product."""
    start = simd.load_int64(starts_at(lists, args.n_experts) + 8 * expert)
    record.count = counts_at(lists, args.n_experts) + 8 * expert
    record.out = args.out + start * args.out_stride
    record.rows = tokens_at(lists, args.n_experts) + 4 * start if args.scatters != 0 else 0
    return args.source + start * args.source_stride


@inline
def add_biases(args, lists, expert, worker, work_split):
    """Add an expert's bias, times the tokens' shares, to a worker's columns of its tokens' rows."""
    start = simd.load_int64(starts_at(lists, args.n_experts) + 8 * expert)
    n_tokens = simd.load_int64(counts_at(lists, args.n_experts) + 8 * expert)
    first, stop = (
        share_start(work_split, worker, args.n_units) * 128,
        share_start(work_split, worker + 1, args.n_units) * 128,
    )
    for pair in range(start, start + n_tokens):
        share = simd.splat(simd.load_float(shares_at(lists, args.n_experts, args.most_pairs) + 4 * pair))
        out = args.out + simd.load_int32(tokens_at(lists, args.n_experts) + 4 * pair) * args.row_stride
        for at in range(first, stop, 64):
            bias = simd.load(args.bias + expert * args.n_units * 128 + at)
            simd.store(out + at, simd.fma(bias, share, simd.load(out + at)))


def multiply(pointer, worker, work_split):
    """An integer product for each expert that has tokens, which prefetches the start of the next expert's weights."""
    args = products_at(pointer)
    lists, own = args.lists + worker * args.lists_stride, args.products + worker * args.products_stride
    n_busy = simd.load_int64(lists)
    for busy in range(n_busy):
        expert, address = simd.load_int64(lists + 8 + 8 * busy), own + busy % 2 * PRODUCT_BYTES
        record = product_at(address)
        record.weights = simd.load_int64(args.table + 8 * expert)
        if args.second_table != 0:
            record.second = simd.load_int64(args.second_table + 8 * expert) - record.weights
        record.activations = point(args, record, lists, expert)
        record.ahead, record.next = args.ahead, 0
        if busy + 1 < n_busy:
            record.next = own + (busy + 1) % 2 * PRODUCT_BYTES
            following = product_at(record.next)
            following.weights = simd.load_int64(args.table + 8 * simd.load_int64(lists + 16 + 8 * busy))
        simd.call_kernel(args.kernel, address, worker, work_split)
        if args.bias != 0:
            add_biases(args, lists, expert, worker, work_split)


def multiply_floats(pointer, worker, work_split):
    """The same for float panels."""
    args = products_at(pointer)
    lists, address = args.lists + worker * args.lists_stride, args.products + worker * args.products_stride
    record = float_product_at(address)
    for busy in range(simd.load_int64(lists)):
        expert = simd.load_int64(lists + 8 + 8 * busy)
        record.weights = simd.load_int64(args.table + 8 * expert)
        record.source = point(args, record, lists, expert)
        simd.call_kernel(args.kernel, address, worker, work_split)
        if args.bias != 0:
            add_biases(args, lists, expert, worker, work_split)


@inline
def swiglu_oai(gate, up):
    """gate * sigmoid(1.702 gate) * (up + 1), the gate limited to 7 and up to -7..7."""
    zero, one, lowest = simd.splat(np.float32(0.0)), simd.splat(np.float32(1.0)), simd.splat(np.float32(-7.0))
    gate = simd.sub(zero, simd.maximum(simd.sub(zero, gate), lowest))
    up = simd.sub(zero, simd.maximum(simd.sub(zero, simd.maximum(up, lowest)), lowest))
    turned = simd.exp(simd.mul(gate, simd.splat(np.float32(-1.702))))
    return simd.mul(simd.div(gate, simd.add(one, turned)), simd.add(up, one))


@inline
def join_halves(args, expert, gate, up, before, at):
    """Hidden values of an expert from a gate and an up product times a factor, with their biases."""
    first, second = simd.load(gate + at), simd.load(up + at)
    if args.scales_source != 0:
        first, second = simd.mul(first, before), simd.mul(second, before)
    if args.gate_bias != 0:
        first = simd.add(first, simd.load(args.gate_bias + expert * args.stride + at))
        second = simd.add(second, simd.load(args.up_bias + expert * args.stride + at))
    if args.curve == SWIGLU_OAI:
        return swiglu_oai(first, second)
    return simd.mul(activated(args.curve, first), second)


@inline
def weigh(args, expert, pair, share, row):
    """Write share * hidden of a pair into a row, after what the product did not do: join gate and up, or activate."""
    gate, up = args.gate + pair * args.stride, args.up + pair * args.stride
    before, factor = simd.splat(share), simd.splat(share)
    if args.scales_source != 0:
        factor = simd.splat(np.float32(1.0))
    for at in range(0, args.stride, 64):
        value = simd.load(gate + at)
        if args.curve != PLAIN:
            if args.up == 0:
                if args.scales_source != 0:
                    value = simd.mul(value, before)
                value = activated(args.curve, value)
            else:
                value = join_halves(args, expert, gate, up, before, at)
        simd.store(row + at, simd.mul(value, factor))


def finish_hidden(pointer, worker, work_split):
    """Hidden rows times their shares, as the down products read them; each worker's share, or all in its own copy."""
    args = hidden_at(pointer)
    lists = args.lists + worker * args.lists_stride
    out, row = args.out + worker * args.own_stride, args.scratch + worker * args.scratch_stride
    n_busy, n_pairs = simd.load_int64(lists), 0
    for busy in range(n_busy):
        n_pairs += simd.load_int64(counts_at(lists, args.n_experts) + 8 * simd.load_int64(lists + 8 + 8 * busy))
    first, stop = share_start(work_split, worker, n_pairs), share_start(work_split, worker + 1, n_pairs)
    if args.own_stride != 0:
        first, stop = 0, n_pairs
    if n_busy != 0:  # the listed experts' pairs follow each other, perhaps after those of other experts
        before = simd.load_int64(starts_at(lists, args.n_experts) + 8 * simd.load_int64(lists + 8))
        first, stop = first + before, stop + before
    for busy in range(n_busy):
        expert = simd.load_int64(lists + 8 + 8 * busy)
        start = simd.load_int64(starts_at(lists, args.n_experts) + 8 * expert)
        n_tokens = simd.load_int64(counts_at(lists, args.n_experts) + 8 * expert)
        for pair in range(max(first, start), min(stop, start + n_tokens)):
            share = simd.load_float(shares_at(lists, args.n_experts, args.most_pairs) + 4 * pair)
            if args.rounding == 0:
                weigh(args, expert, pair, share, out + pair * args.stride)
                continue
            weigh(args, expert, pair, share, row)
            rounding, place = rounding_at(args.rounding), pair - start
            tile, width = tile_of(place, n_tokens, 0)
            record = out + ((start + tile) * rounding.n_padded + place - tile) * RECORD_BYTES
            round_row(rounding, row, record, width * RECORD_BYTES)
