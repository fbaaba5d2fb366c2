"""Mixtures of experts: a router's shares, the grouping of a pass's tokens by expert, and products expert by expert.

Memory: shares float32[n, E], zero for experts that the token does not use. A pair is a token and an expert with a share
in it; pairs are numbered expert by expert, within each token by token. Every worker lists them for itself
(`EXPERT_LISTS` says how they lie), so that needs no barrier. Rows of a pair: activations of its token, as int8 records
in the tiles of its expert's tokens (`rounded.tile_of`) or as floats, and its hidden row. Products are those of
`kernels.matmul.integers` and `kernels.matmul.floats`, called once for each expert that has tokens, through a table of
addresses of its panels. NumPy twins: `ops.router`, `ops.experts`.
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
    MOST_EXPERTS,
    ROUTER,
)
from edgeinfer.backends.cpu.layout.records import FLOAT_PRODUCT, PLAIN, PRODUCT, ROUND_ROWS, SWIGLU_OAI
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

router_at, lists_at, products_at, hidden_at = (
    simd.record_at(kind) for kind in (ROUTER, EXPERT_LISTS, EXPERT_PRODUCTS, EXPERT_HIDDEN)
)
product_at, float_product_at, rounding_at = (simd.record_at(kind) for kind in (PRODUCT, FLOAT_PRODUCT, ROUND_ROWS))
PRODUCT_BYTES = PRODUCT.itemsize
POWERS_BYTES = 4 * MOST_EXPERTS
LOWEST = np.float32(-3e38)
TAKEN = np.float32(-np.inf)


@inline
def softmax_powers(scores, n_experts, powers):
    """e^(score - highest) of a token, zero beyond its experts; returns their sum, NaN if a score is not finite."""
    highest, strange = simd.splat(LOWEST), simd.splat(np.float32(0.0))
    for first in range(0, n_experts, 16):
        value = simd.keep_lanes(simd.load(scores + 4 * first), 0, n_experts - first, LOWEST)
        highest = simd.maximum(highest, value)
        strange = simd.fma(value, simd.splat(np.float32(0.0)), strange)
    most, total = simd.splat(simd.max_lanes(highest)), strange
    for first in range(0, n_experts, 16):
        power = simd.exp(simd.sub(simd.load(scores + 4 * first), most))
        power = simd.keep_lanes(power, 0, n_experts - first, np.float32(0.0))
        simd.store(powers + 4 * first, power)
        total = simd.add(total, power)
    return simd.sum_lanes(total)


@inline
def sigmoid_powers(scores, n_experts, powers):
    """1 / (1 + e^-score) of a token's experts; returns 1, NaN if a score is not finite."""
    one, strange = simd.splat(np.float32(1.0)), simd.splat(np.float32(0.0))
    for first in range(0, n_experts, 16):
        value = simd.keep_lanes(simd.load(scores + 4 * first), 0, n_experts - first, np.float32(0.0))
        strange = simd.fma(value, simd.splat(np.float32(0.0)), strange)
        turned = simd.exp(simd.sub(simd.splat(np.float32(0.0)), value))
        simd.store(powers + 4 * first, simd.div(one, simd.add(one, turned)))
    return np.float32(1.0) + simd.sum_lanes(strange)


@inline
def take_highest(left, n_experts):
    """Take the expert with the highest score among those left, the first of equals; -1 if none is left."""
    found, highest = -1, LOWEST
    for expert in range(n_experts):
        score = simd.load_float(left + 4 * expert)
        if score != TAKEN and (found < 0 or score > highest):
            found, highest = expert, score
    if found >= 0:
        simd.store_float(left + 4 * found, TAKEN)
    return found


@inline
def group_quality(ranks, size):
    """The sum of the two highest ranks of a group."""
    first, second = simd.load_float(ranks), LOWEST
    for expert in range(1, size):
        rank = simd.load_float(ranks + 4 * expert)
        if rank > first:
            first, second = rank, first
        elif rank > second:
            second = rank
    return first + second if size > 1 else first


@inline
def leave_best_groups(ranks, n_experts, groups, active, quality):
    """Lower the ranks of experts outside the best groups below all others; `quality`: scratch, a float per group."""
    size = n_experts // groups
    for group in range(groups):
        simd.store_float(quality + 4 * group, group_quality(ranks + 4 * size * group, size))
    for _ in range(active):
        take_highest(quality, groups)
    for group in range(groups):
        if simd.load_float(quality + 4 * group) != TAKEN:
            for expert in range(size * group, size * (group + 1)):
                simd.store_float(ranks + 4 * expert, LOWEST)


@inline
def route_token(args, scores, out, powers, quality):
    """The shares of one token."""
    total = np.float32(0.0)
    if args.sigmoid != 0:
        total = sigmoid_powers(scores, args.n_experts, powers)
    else:
        total = softmax_powers(scores, args.n_experts, powers)
    for expert in range(args.n_experts):
        rank = simd.load_float(scores + 4 * expert)
        if args.groups > 1:
            rank = simd.load_float(powers + 4 * expert) / total
        if args.bias != 0:
            rank = simd.load_float(powers + 4 * expert) / total + simd.load_float(args.bias + 4 * expert)
        simd.store_float(out + 4 * expert, rank)
    if args.groups > 1:
        leave_best_groups(out, args.n_experts, args.groups, args.active_groups, quality)
    strange, taken = total - total, np.float32(0.0)
    for _ in range(args.active):
        expert = take_highest(out, args.n_experts)
        if expert >= 0:
            taken += simd.load_float(powers + 4 * expert)
    if args.normalised != 0:
        total = taken + strange
    for expert in range(args.n_experts):
        share = np.float32(0.0)
        if simd.load_float(out + 4 * expert) == TAKEN:
            share = simd.load_float(powers + 4 * expert) / total * args.scale
            if args.scales != 0:
                share *= simd.load_float(args.scales + 4 * expert)
        simd.store_float(out + 4 * expert, share)


def route(pointer, worker, work_split):
    """The shares of each worker's tokens, or of all tokens in its own copy."""
    args = router_at(pointer)
    count, powers, quality = simd.load_int64(args.count), simd.stack_space(POWERS_BYTES), simd.stack_space(POWERS_BYTES)
    first, stop = share_start(work_split, worker, count), share_start(work_split, worker + 1, count)
    if args.own_stride != 0:
        first, stop = 0, count
    for token in range(first, stop):
        out = args.out + worker * args.own_stride + token * args.out_stride
        route_token(args, args.scores + token * args.scores_stride, out, powers, quality)


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
def join_halves(args, expert, gate, up, at):
    """Hidden values of an expert from a gate and an up product, with their biases."""
    first, second = simd.load(gate + at), simd.load(up + at)
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
    factor = simd.splat(share)
    for at in range(0, args.stride, 64):
        value = simd.load(gate + at)
        if args.curve != PLAIN:
            if args.up == 0:
                value = activated(args.curve, value)
            else:
                value = join_halves(args, expert, gate, up, at)
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
