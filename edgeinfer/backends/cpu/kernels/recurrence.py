"""What recurrences over tokens share: tiles of 16 columns that go through all tokens, sequences, trees, kept inputs.

In: a record, how a tile advances by a token of the pass and by a kept one, how a token's inputs are kept. Out: kernels.
Memory: `heads` heads of `width` columns; states float32[slots, heads, width / 16, rows, 16]: the rows of a tile lie
together; out float32[n, out_stride / 4]; kept float32[rows, kept_stride / 4]. The columns of a state are independent: a
tile stays in the first cache while it processes all tokens in order, so sums never depend on what else is in the pass.
In a tree, a node that does not follow the one before it starts from the tile after the settled tokens and replays its
path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from edgeinfer.backends.cpu.kernels.work_split import share_start
from edgeinfer.backends.cpu.layout.records import MOST_DELTA_WIDTH
from edgeinfer.backends.cpu.layout.step_records import ROW, ROW_INTS, SAVE, SAVE_INTS, STATE_STEP
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

Code: TypeAlias = Callable[..., Any]
step_at = simd.record_at(STATE_STEP)
FIRST, STOP, SLOT, SETTLED, KEPT = (ROW[name] for name in ("first", "stop", "slot", "settled", "kept"))
ROW_BYTES, SAVE_BYTES = 4 * ROW_INTS, 4 * SAVE_INTS
SAVED_ROW, LAST, TARGET = (SAVE[name] for name in ("row", "last", "slot"))
TILE_BYTES = 64 * MOST_DELTA_WIDTH


@inline
def copy_numbers(source, target, count):
    """Copy that many numbers, a multiple of 16."""
    for index in range(0, count * 4, 64):
        simd.store(target + index, simd.load(source + index))


@inline
def copy_scalars(source, target, count):
    """Copy that many numbers."""
    for index in range(count):
        simd.store_float(target + 4 * index, simd.load_float(source + 4 * index))


@inline
def ancestor(parents, token, n_before):
    """The token that many tokens before another one in the pass."""
    for _ in range(n_before):
        token = simd.load_int32(parents + 4 * token)
    return token


def keeping(keep_token: Code) -> Code:
    """The function that keeps the inputs of tokens `start` to `stop` that are not settled.

    keep_token(args, token, kept) copies what states need to advance by a token.
    """

    @inline
    def keep_open(args, step, start, stop):
        for number in range(step.n_rows):
            row = step.rows + number * ROW_BYTES
            settled, kept = simd.load_int32(row + SETTLED), simd.load_int32(row + KEPT)
            for token in range(max(start, settled), min(stop, simd.load_int32(row + STOP))):
                keep_token(args, token, args.kept + (kept + token - settled) * args.kept_stride)

    return keep_open


def walking(arguments_at: Code, by_token: Code, by_kept: Code) -> tuple[Code, Code]:
    """The kernels that process all tokens of a pass, and that advance a slot by kept tokens.

    by_token(tile, token, head, column, args) advances a tile by a token and returns the output of its columns, of which
    `column` is the first among those of all heads; by_kept(tile, kept, head, column, args) does so by kept inputs.
    """

    @inline
    def open_tokens(args, step, settled, stop, head, column, base, tile):
        """Process tokens that are not settled, a tree after `base`; `tile` is scratch."""
        at = -1  # the token after which `tile` is the state
        for token in range(settled, stop):
            parent = simd.load_int32(step.parents + 4 * token)
            if at < 0 or parent != at:
                copy_numbers(base, tile, args.rows * 16)
                depth, above = 0, parent
                while above >= settled:
                    depth, above = depth + 1, simd.load_int32(step.parents + 4 * above)
                for place in range(depth):
                    by_token(tile, ancestor(step.parents, token, depth - place), head, column, args)
            given = by_token(tile, token, head, column, args)
            simd.store(args.out + token * args.out_stride + column * 4, given)
            at = token

    def recurrence(pointer, worker, work_split):
        """Process all tokens of the pass, by sequences and tiles; save states where the step asks for it."""
        args = arguments_at(pointer)
        step = step_at(args.states_step)
        tile, other = simd.stack_space(TILE_BYTES), simd.stack_space(TILE_BYTES)
        per_head = args.width // 16
        n_tiles = args.heads * per_head
        count = step.n_rows * n_tiles
        for unit in range(share_start(work_split, worker, count), share_start(work_split, worker + 1, count)):
            number, place = unit // n_tiles, unit % n_tiles
            head, column, at = place // per_head, place * 16, place * args.rows * 64
            row = step.rows + number * ROW_BYTES
            settled, stop = simd.load_int32(row + SETTLED), simd.load_int32(row + STOP)
            copy_numbers(args.states + simd.load_int32(row + SLOT) * args.state_bytes + at, tile, args.rows * 16)
            for token in range(simd.load_int32(row + FIRST), settled):
                given = by_token(tile, token, head, column, args)
                simd.store(args.out + token * args.out_stride + column * 4, given)
                for which in range(step.n_saves):
                    save = step.saves + which * SAVE_BYTES
                    if simd.load_int32(save + SAVED_ROW) == number and simd.load_int32(save + LAST) == token:
                        target = args.states + simd.load_int32(save + TARGET) * args.state_bytes + at
                        copy_numbers(tile, target, args.rows * 16)
            open_tokens(args, step, settled, stop, head, column, tile, other)

    def advance(pointer, worker, work_split):
        """Write to a slot the state of another slot, or its own, after tokens that were kept."""
        args = arguments_at(pointer)
        step = step_at(args.states_step)
        tile = simd.stack_space(TILE_BYTES)
        per_head = args.width // 16
        n_tiles = args.heads * per_head
        for place in range(share_start(work_split, worker, n_tiles), share_start(work_split, worker + 1, n_tiles)):
            at = place * args.rows * 64
            copy_numbers(args.states + step.source * args.state_bytes + at, tile, args.rows * 16)
            for node in range(step.n_nodes):
                kept = args.kept + simd.load_int32(step.nodes + 4 * node) * args.kept_stride
                by_kept(tile, kept, place // per_head, place * 16, args)
            copy_numbers(tile, args.states + step.target * args.state_bytes + at, args.rows * 16)

    return recurrence, advance
