"""Products of integer panels with int8 activations in tile registers (AMX), for tiles of 16 of many tokens.

Memory: as for `kernels.matmul.integers`, whose kernel handles the remaining tokens. For all tokens of a block, a run
of columns of both panels of a unit is unpacked: per block of 32 columns int8 codes [8, 16, 4], then scales and minima
float32[groups, 16]. A tile register holds int32[16 tokens, 16 rows] of one group of columns; the next block is
multiplied while the integers of the last one are added to the sums. The integers are exact, so results equal those of
any other kernel, bit for bit. Scratch of a worker, TILE_SCRATCH_BYTES: integers of two blocks, sums
float32[tokens / 16, 2, 16, 16] of a block of tokens, two unpacked panels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgeinfer.backends.cpu.kernels.bfloats import release_tiles
from edgeinfer.backends.cpu.kernels.matmul.activations import tiled_tokens
from edgeinfer.backends.cpu.kernels.matmul.codes import PairReader
from edgeinfer.backends.cpu.kernels.matmul.integers import arguments_at, share_of_tokens, write
from edgeinfer.backends.cpu.layout import rounded as act
from edgeinfer.backends.cpu.layout.panels import BLOCK, PANEL_ROWS, IntegerPanel
from edgeinfer.backends.cpu.layout.records import (
    MOST_UNPACKED_BLOCKS,
    TILE_BLOCK_TOKENS,
    TILE_PRODUCTS_BYTES,
    TILE_SUMS_BYTES,
)
from edgeinfer.jit import emit, simd
from edgeinfer.jit.targets import target

TOKENS = act.TILE
PRODUCTS, ACTIVATIONS, WEIGHTS = 0, 4, 6
"""First tile registers of the products (one per group and panel), of the activations (per group), of the panels."""
PRODUCT_BYTES = TOKENS * PANEL_ROWS * 4
CODES_BYTES = PANEL_ROWS * BLOCK
ROW_BYTES = 2 * 64
"""Bytes of a token's sums, for both panels."""


def tile_shapes(groups: int) -> list[int]:
    """The 64 bytes that describe the shapes of tile registers: 16-bit row bytes from 16 on, 8-bit rows from 48 on."""
    shape, columns = [1] + [0] * 63, BLOCK // groups
    shapes = {PRODUCTS + number: (TOKENS, 4 * PANEL_ROWS) for number in range(2 * groups)}
    shapes |= {ACTIVATIONS + group: (TOKENS, columns) for group in range(groups)}
    shapes |= {WEIGHTS + panel: (columns // 4, 4 * PANEL_ROWS) for panel in range(2)}
    for register, (rows, row_bytes) in shapes.items():
        shape[16 + 2 * register], shape[48 + register] = row_bytes, rows
    return shape


@intrinsic(prefer_literal=True)
def shape_tiles(context, panel_key):
    """Load the shapes of the tiles into the processor."""
    groups = IntegerPanel.parse(panel_key.literal_value).groups

    def generate(context, builder, signature, values):
        memory = builder.alloca(emit.BYTES)
        builder.store(ir.Constant(emit.BYTES, tile_shapes(groups)), memory)
        emit.call(builder, "llvm.x86.ldtilecfg", emit.VOID, [builder.bitcast(memory, emit.I8.as_pointer())])
        return context.get_dummy_value()

    return types.void(panel_key), generate


@intrinsic(prefer_literal=True)
def unpack(context, panel_key, isa_name, panel_address, n_records, to):
    """Write a panel's codes, scales and minima to `to` in the layout of tiles."""
    panel, isa = IntegerPanel.parse(panel_key.literal_value), target(isa_name.literal_value)
    n_pairs, offset = panel.record_pairs, emit.byte_table([panel.offset], 64)

    def generate(context, builder, signature, values):
        _, _, address, n_records, to = values

        def pair(index, nothing):
            record, number = builder.sdiv(index, emit.integer(n_pairs)), builder.srem(index, emit.integer(n_pairs))
            at = builder.add(address, builder.mul(record, emit.integer(panel.record_bytes)))
            reader = PairReader(builder, panel, isa, at, number)
            for block in range(2):
                place = builder.add(builder.mul(index, emit.integer(2)), emit.integer(block))
                out = builder.add(to, builder.mul(place, emit.integer(panel.unpacked_bytes)))
                for column, codes in reader.codes(block):
                    emit.store(builder, builder.sub(codes, offset), out, PANEL_ROWS * column, 64)
                for group in range(panel.groups):
                    emit.store(builder, reader.scale(block, group), out, CODES_BYTES + 64 * group, 64)
                    if panel.has_minimum:
                        at_minimum = CODES_BYTES + 64 * (panel.groups + group)
                        emit.store(builder, reader.minimum(block, group), out, at_minimum, 64)
            return []

        emit.loop(builder, builder.mul(n_records, emit.integer(n_pairs)), [], pair)
        return context.get_dummy_value()

    return types.void(panel_key, isa_name, *[types.intp] * 3), generate


class TileEmitter:
    """Emit code for the blocks of two unpacked panels times a tile of tokens."""

    def __init__(self, builder, panel, panels, activations, products, sums):
        self._builder = builder
        self._panel = panel
        self._panels = panels
        self._activations = activations
        self._products = products
        self._sums = sums

    def multiply(self, block):
        """Store a block's integers in the half of `products` that its number selects."""
        builder, groups, products = self._builder, self._panel.groups, self._products_of(block)
        for group in range(groups):
            at = builder.add(self._records(block), emit.integer(group * BLOCK // groups))
            self._load(ACTIVATIONS + group, at, act.RECORD_BYTES)
            for number in range(2):
                at = builder.add(self._unpacked(number, block), emit.integer(group * CODES_BYTES // groups))
                self._load(WEIGHTS + number, at, 4 * PANEL_ROWS)
                place = group * 2 + number
                self._call("tilezero", PRODUCTS + place)
                self._call("tdpbssd", PRODUCTS + place, ACTIVATIONS + group, WEIGHTS + number)
                to = emit.pointer(builder, products, emit.I8, place * PRODUCT_BYTES)
                self._call("tilestored64", PRODUCTS + place, to, emit.integer(4 * PANEL_ROWS))

    def add(self, block):
        """Add a block's products to the sums, in the same chain as `tiles.multiply`."""
        builder, panel, products = self._builder, self._panel, self._products_of(block)
        records = self._records(block)
        for number in range(2):
            unpacked = self._unpacked(number, block)
            places = [CODES_BYTES + 64 * group for group in range(panel.groups * (1 + panel.has_minimum))]
            factors = [emit.load(builder, unpacked, emit.F32S, place, 64) for place in places]
            for token in range(TOKENS):
                at, place = token * act.RECORD_BYTES, 64 * (number * TOKENS + token)
                total = emit.load(builder, self._sums, emit.F32S, place, 64)
                factor = emit.broadcast_float(builder, records, at + act.SCALE_AT)
                for group in range(panel.groups):
                    product_at = (group * 2 + number) * PRODUCT_BYTES + 64 * token
                    dot = builder.sitofp(emit.load(builder, products, emit.I32S, product_at, 64), emit.F32S)
                    total = emit.fma(builder, builder.fmul(dot, factor), factors[group], total)
                    if panel.has_minimum:
                        sum_at = act.SUM_AT if panel.groups == 1 else act.HALF_SUMS_AT + 4 * group
                        share = emit.broadcast_float(builder, records, at + sum_at)
                        total = emit.fma(builder, factors[panel.groups + group], share, total)
                emit.store(builder, total, self._sums, place, 64)

    def _records(self, block):
        return self._builder.add(self._activations, self._builder.mul(block, emit.integer(TOKENS * act.RECORD_BYTES)))

    def _unpacked(self, number, block):
        at = self._builder.mul(block, emit.integer(self._panel.unpacked_bytes))
        return self._builder.add(self._panels[number], at)

    def _products_of(self, block):
        half = self._builder.and_(block, emit.integer(1))
        return self._builder.add(self._products, self._builder.mul(half, emit.integer(TILE_PRODUCTS_BYTES // 2)))

    def _load(self, register, address, stride):
        pointer = emit.pointer(self._builder, address, emit.I8)
        self._call("tileloadd64", register, pointer, emit.integer(stride))

    def _call(self, name, *arguments):
        """Call an intrinsic; registers are given by their numbers."""
        values = [ir.Constant(emit.I8, each) if isinstance(each, int) else each for each in arguments]
        emit.call(self._builder, f"llvm.x86.{name}", emit.VOID, values)


@intrinsic(prefer_literal=True)
def multiply(context, panel_key, panels, activations, n_blocks, products, sums):
    """Add the products of two unpacked panels with a tile of tokens to their sums, float32[2, 16, 16].

    `products` is scratch of TILE_PRODUCTS_BYTES.
    """
    panel = IntegerPanel.parse(panel_key.literal_value)

    def generate(context, builder, signature, values):
        _, panels, activations, n_blocks, products, out = values
        addresses = [builder.extract_value(panels, number) for number in range(2)]
        emitter = TileEmitter(builder, panel, addresses, activations, products, out)
        emitter.multiply(emit.integer(0))

        def block(index, nothing):
            following = builder.add(index, emit.integer(1))
            with builder.if_then(builder.icmp_signed("<", following, n_blocks)):
                emitter.multiply(following)
            emitter.add(index)
            return []

        emit.loop(builder, n_blocks, [], block)
        return context.get_dummy_value()

    return types.void(panel_key, panels, *[types.intp] * 4), generate


def product(key: str, isa: str) -> Callable[..., None]:
    """The kernel for an integer panel; `isa` names the vector instructions used beside the tiles."""
    panel = IntegerPanel.parse(key)
    record_bytes, record_blocks, unpacked_bytes = panel.record_bytes, 2 * panel.record_pairs, panel.unpacked_bytes
    run_records = MOST_UNPACKED_BLOCKS // record_blocks

    def product_amx(pointer, worker, work_split):
        args = arguments_at(pointer)
        count, token_bytes = simd.load_int64(args.count), args.n_blocks * act.RECORD_BYTES
        end, whole = share_of_tokens(work_split, worker, 0, tiled_tokens(count))
        if end == whole:
            return
        products = args.unpacked + worker * args.unpacked_stride
        sums = products + TILE_PRODUCTS_BYTES
        first = sums + TILE_SUMS_BYTES
        second = first + MOST_UNPACKED_BLOCKS * unpacked_bytes
        shape_tiles(key)
        while end < whole:
            block, end = end, min(whole, end + min(args.block_tokens, TILE_BLOCK_TOKENS))
            for unit in range(args.n_units):
                for at in range(sums, sums + (end - block) * ROW_BYTES, 64):
                    simd.store(at, simd.splat(np.float32(0.0)))
                weights = args.weights + unit * args.unit_bytes
                for record in range(0, args.n_records, run_records):
                    n_records, at = min(run_records, args.n_records - record), weights + record * record_bytes
                    unpack(key, isa, at, n_records, first)
                    unpack(key, isa, at + args.second, n_records, second)
                    to = sums
                    for token in range(block, end, TOKENS):
                        x = args.activations + token * token_bytes + record * record_blocks * TOKENS * act.RECORD_BYTES
                        multiply(key, (first, second), x, n_records * record_blocks, products, to)
                        to += TOKENS * ROW_BYTES
                for token in range(block, end, TOKENS):
                    write(args, unit, token, np.int64(TOKENS), sums + (token - block) * ROW_BYTES, np.int64(TOKENS))
        release_tiles()

    return product_amx
