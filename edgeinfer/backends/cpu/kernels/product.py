"""Products of integer panels with int8 activations: out[t, row] (+)= sum over columns of weight * activation.

Memory: weights uint8[n_panels, panel_bytes] (`panels.IntegerPanel`), activations as `kernels.activations` lays them
out, out float32[n, out_stride / 4] (16 rows of a panel are written together). Per 32 columns the dot is an exact
integer; the float chain runs over the blocks in order, the same for any tile size, so a token's result never depends
on its neighbours. Its NumPy twin is dequantised weights times `reference.round_activations`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from edgeinfer.backends.cpu import emit, simd
from edgeinfer.backends.cpu.jit import Kernel
from edgeinfer.backends.cpu.kernels import activations as act
from edgeinfer.backends.cpu.kernels.crew import share_start
from edgeinfer.backends.cpu.panels import IntegerPanel
from edgeinfer.backends.cpu.targets import target

ARGUMENTS = np.dtype(
    [
        ("weights", "i8"),
        ("panel_bytes", "i8"),
        ("n_panels", "i8"),
        ("n_records", "i8"),  # records of 64 columns in a panel
        ("activations", "i8"),
        ("out", "i8"),
        ("out_stride", "i8"),  # bytes between tokens
        ("count", "i8"),  # address of the number of tokens
        ("accumulate", "i8"),  # 1: add to out
        ("bias", "i8"),  # float32[n_panels * 16], or float32[16] zeros with stride 0
        ("bias_stride", "i8"),  # bytes between panels
    ]
)


class TileEmitter:
    """Code for one record of one panel times a tile of tokens."""

    def __init__(self, builder, panel, isa, tile, record, activations):
        self._builder = builder
        self._panel = panel
        self._isa = isa
        self._tile = tile
        self._record = record
        self._activations = activations

    def block(self, block, sums):
        """Add the block's products to the float sums of each token of the tile."""
        builder, panel = self._builder, self._panel
        dots = [[self._dot(block, token, group) for group in range(panel.groups)] for token in range(self._tile)]
        codes_at = panel.codes_at + block * panel.code_bytes
        for index in range(panel.code_bytes // 64):
            loaded = emit.load(builder, self._record, emit.BYTES, codes_at + 64 * index, 64)
            for column, weights in self._columns(index, loaded):
                for token in range(self._tile):
                    at = self._token_at(block, token) + column
                    values = emit.broadcast_bytes(builder, self._activations, at)
                    dots[token][column // panel.group].step(builder, weights, values)
        for group in range(panel.groups):
            scale = self._scale(0, block, group)
            minimum = self._scale(panel.minima_at, block, group) if panel.has_minimum else None
            for token in range(self._tile):
                dot = dots[token][group].finish(builder)
                sums[token] = self._scaled(sums[token], dot, scale, minimum, block, token, group)
        return sums

    def _token_at(self, block, token):
        return (block * self._tile + token) * act.RECORD_BYTES

    def _columns(self, index, loaded):
        """(first column, 64 codes) of one load: 4-bit codes hold columns 16 further on in their high halves."""
        if self._panel.code_bits == 8:
            return [(4 * index, loaded)]
        low = self._builder.and_(loaded, emit.repeated(emit.BYTES, 15))
        return [(4 * index, low), (16 + 4 * index, self._builder.lshr(loaded, emit.repeated(emit.BYTES, 4)))]

    def _dot(self, block, token, group):
        """A dot that starts from what the codes' offset adds too much."""
        builder, panel = self._builder, self._panel
        if panel.offset == 0:
            return self._isa.dot(builder, emit.repeated(emit.I32S, 0), panel.code_bits)
        at = self._token_at(block, token)
        if panel.groups == 1:
            at += act.LESS_8_AT if panel.offset == 8 else act.LESS_128_AT
            start = emit.splat(builder, emit.load(builder, self._activations, emit.I32, at, 4))
        else:
            less = emit.load(builder, self._activations, emit.I32, at + act.HALF_LESS_AT + 4 * group, 4)
            start = emit.splat(builder, builder.mul(less, ir.Constant(emit.I32, panel.offset)))
        return self._isa.dot(builder, start, panel.code_bits)

    def _scale(self, region, block, group):
        at = region + (block * self._panel.groups + group) * self._panel.scale_bytes
        load = emit.load_halves if self._panel.half_scales else emit.load_floats
        return load(self._builder, self._record, at)

    def _scaled(self, total, dot, scale, minimum, block, token, group):
        """total + dot * activation scale * weight scale (+ minimum * scaled sum of activations)."""
        builder, at = self._builder, self._token_at(block, token)
        factor = emit.broadcast_float(builder, self._activations, at + act.SCALE_AT)
        total = emit.fma(builder, builder.fmul(builder.sitofp(dot, emit.F32S), factor), scale, total)
        if minimum is None:
            return total
        sum_at = act.SUM_AT if self._panel.groups == 1 else act.HALF_SUMS_AT + 4 * group
        return emit.fma(builder, minimum, emit.broadcast_float(builder, self._activations, at + sum_at), total)


@intrinsic(prefer_literal=True)
def multiply_tile(context, panel_key, isa_name, tile, weights, activations, n_records, out, stride, accumulate, bias):
    """One panel times `tile` tokens, the loop over all records included."""
    panel, isa, size = IntegerPanel.parse(panel_key.literal_value), target(isa_name.literal_value), tile.literal_value

    def generate(context, builder, signature, values):
        _, _, _, weights, activations, n_records, out, stride, accumulate, bias = values

        def body(index, sums):
            record = builder.add(weights, builder.mul(index, emit.integer(panel.record_bytes)))
            tokens = builder.add(activations, builder.mul(index, emit.integer(2 * size * act.RECORD_BYTES)))
            code = TileEmitter(builder, panel, isa, size, record, tokens)
            return code.block(1, code.block(0, sums))

        sums = emit.loop(builder, n_records, [emit.repeated(emit.F32S, 0.0)] * size, body)
        finish_tile(builder, sums, out, stride, accumulate, bias)
        return context.get_dummy_value()

    return types.void(panel_key, isa_name, tile, *[types.intp] * 7), generate


def finish_tile(builder, sums, out, stride, accumulate, bias):
    """Emit out[t] = sums[t] + bias, or out[t] += the same."""
    adds = builder.icmp_signed("!=", accumulate, emit.integer(0))
    offsets = emit.load_floats(builder, bias)
    for token, total in enumerate(sums):
        address = builder.add(out, builder.mul(stride, emit.integer(token)))
        before = builder.select(adds, emit.load_floats(builder, address), emit.repeated(emit.F32S, 0.0))
        emit.store(builder, builder.fadd(builder.fadd(total, offsets), before), address, align=4)


def product_kernel(panel: IntegerPanel, isa_name: str) -> Kernel:
    """The kernel for an integer panel and an instruction set."""
    key = panel.key

    def product(pointer, worker, crew):
        args = carray(pointer, 1)[0]
        count = simd.load_int64(args.count)
        n_records, stride, accumulate = args.n_records, args.out_stride, args.accumulate
        token_bytes = 2 * n_records * act.RECORD_BYTES
        for panel in range(share_start(crew, worker, args.n_panels), share_start(crew, worker + 1, args.n_panels)):
            weights = args.weights + panel * args.panel_bytes
            bias = args.bias + panel * args.bias_stride
            out = args.out + panel * 64
            x = args.activations
            left = count
            while left >= 8:
                multiply_tile(key, isa_name, 8, weights, x, n_records, out, stride, accumulate, bias)
                left -= 8
                out += 8 * stride
                x += 8 * token_bytes
            if left >= 4:
                multiply_tile(key, isa_name, 4, weights, x, n_records, out, stride, accumulate, bias)
                left -= 4
                out += 4 * stride
                x += 4 * token_bytes
            if left >= 2:
                multiply_tile(key, isa_name, 2, weights, x, n_records, out, stride, accumulate, bias)
                left -= 2
                out += 2 * stride
                x += 2 * token_bytes
            if left >= 1:
                multiply_tile(key, isa_name, 1, weights, x, n_records, out, stride, accumulate, bias)

    return Kernel(f"product-{key}-{isa_name}", product, ARGUMENTS)
