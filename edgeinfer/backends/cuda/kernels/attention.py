"""Attention over the pages of the cache: chunks of PAGE positions, each with its own softmax, joined in order.

A warp handles one query head of one token. Within a chunk its lanes first compute the scores of positions, then take
columns and add up the values of the positions in order. Results are bit-identical whether one block loops over the
chunks or each block takes one chunk and a second kernel joins them; they depend on the token's own context alone. Twin:
`reference.ReferenceLane._attend`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.cached import cached_value, key_product, slot_of
from edgeinfer.backends.cuda.kernels.intrinsics import LANES, lane_max, lane_sum
from edgeinfer.graph.step import PAGE

NEVER = np.float32(-math.inf)


@cuda.jit(device=True)
def lowest_of(position, window, has_window):
    """The lowest position that a token sees."""
    if has_window:
        return max(np.int64(0), position - window + 1)
    return np.int64(0)


@cuda.jit(device=True)
def find_slots(slots, step, places, table_width, token, chunk, lowest, position, thread, threads):
    """Slots of a chunk's positions, -1 for those the token does not see; all threads of the block take part."""
    row, start = np.int64(step[places[1] + token]), np.int64(step[places[2] + token])
    path = np.int64(step[places[3] + token])
    for place in range(thread, PAGE, threads):
        at = chunk * PAGE + place
        slots[place] = np.int64(-1)
        if at >= lowest and at <= position:
            slots[place] = slot_of(step, places[4], table_width, row, start, path, at)


@cuda.jit(device=True)
def raise_powers(powers, first, highest, lane):
    """Turn scores into exp(score - highest), in place, and sum them over the lanes."""
    total = np.float32(0)
    for place in range(lane, PAGE, LANES):
        power = np.float32(math.exp(powers[first + place] - highest))
        powers[first + place] = power
        total += power
    return lane_sum(total)


@cuda.jit(device=True)
def clear(state, n_values):
    """Initialise the state before the first chunk."""
    state[0], state[1] = NEVER, np.float32(0)
    for place in range(n_values):
        state[2 + place] = np.float32(0)


@cuda.jit(device=True)
def join(state, values, n_values, highest, total):
    """Add a chunk (its highest score, sum of exponentials and float32[n_values] of values) to the state, in place.

    state float32[2 + n_values]: highest score, sum of exponentials, values so far.
    """
    top = max(state[0], highest)
    own, other = np.float32(math.exp(state[0] - top)), np.float32(math.exp(highest - top))
    state[0] = top
    state[1] = cuda.fma(total, other, state[1] * own)
    for place in range(n_values):
        state[2 + place] = cuda.fma(values[place], other, state[2 + place] * own)


def attention(kind, key_width, key_padded, value_width, value_padded, warps, has_window, has_cap, is_split):
    """Kernel: a block of (LANES, warps) threads; grid (tokens, kv heads * blocks per group, chunks if split)."""
    product = key_product(kind, key_padded)
    value_of = cached_value(kind, value_padded)
    per_lane, n_threads = -(-value_width // LANES), LANES * warps
    n_queries, n_powers, n_state = warps * key_padded, warps * PAGE, 2 + per_lane

    @cuda.jit
    def attend(
        q, keys, key_scales, values, value_scales, step, places, out, partials, kv_heads, group, stride, out_stride,
        table_width, n_chunks, scale, window, cap,
    ):  # fmt: skip
        """q float32[tokens, stride] -> out float32[tokens, out_stride], or, if split, partials (see `joining`).

        Caches as `layout.KVForm`; places int32[5]: where positions, rows, starts, paths and tables begin in `step`.
        """
        queries = cuda.shared.array(n_queries, np.float32)
        powers = cuda.shared.array(n_powers, np.float32)
        slots = cuda.shared.array(PAGE, np.int64)
        lane, warp, token = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.x
        blocks = (group + warps - 1) // warps
        kv_head = cuda.blockIdx.y // blocks
        member = cuda.blockIdx.y % blocks * warps + warp
        head = kv_head * group + min(member, group - 1)
        position = np.int64(step[places[0] + token])
        lowest = lowest_of(position, window, has_window)
        first, last = lowest // PAGE, position // PAGE
        if is_split:
            if cuda.blockIdx.z < first or cuda.blockIdx.z > last:
                return
            first = last = np.int64(cuda.blockIdx.z)
        for column in range(lane, key_padded, LANES):
            number = np.float32(0)
            if column < key_width:
                number = q[token * stride + head * key_width + column] * scale
            queries[warp * key_padded + column] = number
        state = cuda.local.array(n_state, np.float32)
        added = cuda.local.array(per_lane, np.float32)
        clear(state, per_lane)
        for chunk in range(first, last + 1):
            cuda.syncthreads()
            find_slots(slots, step, places, table_width, token, chunk, lowest, position, warp * LANES + lane, n_threads)
            cuda.syncthreads()
            highest = NEVER
            for place in range(lane, PAGE, LANES):
                score = NEVER
                if slots[place] >= 0:
                    score = product(queries, warp * key_padded, keys, key_scales, slots[place] * kv_heads + kv_head)
                    if has_cap:
                        score = cap * np.float32(math.tanh(score / cap))
                powers[warp * PAGE + place] = score
                highest = max(highest, score)
            highest = lane_max(highest)
            total = raise_powers(powers, warp * PAGE, highest, lane)
            cuda.syncthreads()
            for place in range(per_lane):
                added[place] = np.float32(0)
                column = lane + place * LANES
                if column < value_width:
                    for at in range(PAGE):
                        if slots[at] >= 0:
                            number = value_of(values, value_scales, slots[at] * kv_heads + kv_head, column)
                            added[place] = cuda.fma(powers[warp * PAGE + at], number, added[place])
            join(state, added, per_lane, highest, total)
        if member >= group:
            return
        if is_split:
            at = ((token * kv_heads * group + head) * n_chunks + first) * (2 + value_padded)
            if lane == 0:
                partials[at] = state[0]
                partials[at + 1] = state[1]
            for place in range(per_lane):
                if lane + place * LANES < value_width:
                    partials[at + 2 + lane + place * LANES] = state[2 + place]
        else:
            at = token * out_stride + head * value_width
            for place in range(per_lane):
                if lane + place * LANES < value_width:
                    out[at + lane + place * LANES] = state[2 + place] / state[1]

    return attend


def joining(value_width, value_padded, has_window):
    """Kernel: a block of (LANES, 1) threads; grid (tokens, heads)."""
    per_lane = -(-value_width // LANES)
    n_state = 2 + per_lane

    @cuda.jit
    def joined(partials, step, places, out, n_chunks, out_stride, window):
        """partials float32[tokens, heads, n_chunks, 2 + value_padded] -> out float32[tokens, out_stride]."""
        lane, token, head = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
        position = np.int64(step[places[0] + token])
        lowest = lowest_of(position, window, has_window)
        state = cuda.local.array(n_state, np.float32)
        added = cuda.local.array(per_lane, np.float32)
        clear(state, per_lane)
        for chunk in range(lowest // PAGE, position // PAGE + 1):
            at = ((token * cuda.gridDim.y + head) * n_chunks + chunk) * (2 + value_padded)
            for place in range(per_lane):
                added[place] = np.float32(0)
                if lane + place * LANES < value_width:
                    added[place] = partials[at + 2 + lane + place * LANES]
            join(state, added, per_lane, partials[at], partials[at + 1])
        for place in range(per_lane):
            if lane + place * LANES < value_width:
                out[token * out_stride + head * value_width + lane + place * LANES] = state[2 + place] / state[1]

    return joined
