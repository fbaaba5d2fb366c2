"""A router's shares of each token: the choice of experts, token by token.

Memory: scores and shares float32[n, E], shares zero for experts that the token does not use. NumPy twin: `ops.router`.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.chosen_records import MOST_EXPERTS, ROUTER
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

router_at = simd.record_at(ROUTER)
POWERS_BYTES = 4 * MOST_EXPERTS
LOWEST = np.float32(-3e38)
TAKEN = np.float32(-np.inf)
NEAR = np.float32(0.02)


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
def group_quality(ranks, size, rated_by):
    """The sum of the two highest ranks of a group, or the highest."""
    first, second = simd.load_float(ranks), LOWEST
    for expert in range(1, size):
        rank = simd.load_float(ranks + 4 * expert)
        if rank > first:
            first, second = rank, first
        elif rank > second:
            second = rank
    return first + second if size > 1 and rated_by > 1 else first


@inline
def leave_best_groups(ranks, n_experts, groups, active, rated_by, quality):
    """Lower the ranks of experts outside the best groups below all others; `quality`: scratch, a float per group."""
    size = n_experts // groups
    for group in range(groups):
        simd.store_float(quality + 4 * group, group_quality(ranks + 4 * size * group, size, rated_by))
    for _ in range(active):
        take_highest(quality, groups)
    for group in range(groups):
        if simd.load_float(quality + 4 * group) != TAKEN:
            for expert in range(size * group, size * (group + 1)):
                simd.store_float(ranks + 4 * expert, LOWEST)


@inline
def near_powers(scores, left, n_experts, taken, powers):
    """The sum of e^(score - that of `taken`) over it and the experts left whose scores are near; `powers`: scratch."""
    highest, total = simd.load_float(scores + 4 * taken), simd.splat(np.float32(0.0))
    for expert in range(n_experts):
        score, below = simd.load_float(scores + 4 * expert), LOWEST
        if simd.load_float(left + 4 * expert) != TAKEN and highest - score <= NEAR * max(abs(score), highest):
            below = score - highest
        simd.store_float(powers + 4 * expert, np.float32(0.0) if expert == taken else below)
    for first in range(0, n_experts, 16):
        below = simd.keep_lanes(simd.load(powers + 4 * first), 0, n_experts - first, LOWEST)
        total = simd.add(total, simd.keep_lanes(simd.exp(below), 0, n_experts - first, np.float32(0.0)))
    return simd.sum_lanes(total)


@inline
def mix_token(args, scores, out, powers, shares):
    """The shares of one token by a sparse mixer; `shares`: scratch, as `powers`."""
    total = softmax_powers(scores, args.n_experts, powers)
    strange = total - total
    for expert in range(args.n_experts):
        simd.store_float(out + 4 * expert, simd.load_float(scores + 4 * expert))
        simd.store_float(shares + 4 * expert, np.float32(0.0))
    for _ in range(args.active):
        expert = take_highest(out, args.n_experts)
        if expert >= 0:
            share = np.float32(1.0) / near_powers(scores, out, args.n_experts, expert, powers) + strange
            simd.store_float(shares + 4 * expert, share * args.scale)
    for expert in range(args.n_experts):
        simd.store_float(out + 4 * expert, simd.load_float(shares + 4 * expert))


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
        leave_best_groups(out, args.n_experts, args.groups, args.active_groups, args.rated_by, quality)
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
        if args.mixer != 0:
            mix_token(args, args.scores + token * args.scores_stride, out, powers, quality)
        else:
            route_token(args, args.scores + token * args.scores_stride, out, powers, quality)
