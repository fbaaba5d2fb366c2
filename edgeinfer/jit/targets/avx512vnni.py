"""AVX-512 VNNI: one vpdpbusd adds 64 products of unsigned weights and signed activations."""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite
from llvmlite import ir

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value
from edgeinfer.jit.targets import Target

LLVM_TAKES_BYTES = tuple(int(part) for part in llvmlite.__version__.split(".")[:2]) >= (0, 47)
"""From LLVM 22 on, vpdpbusd's intrinsics take bytes; before, they take the same bits as 32-bit integers."""


class VnniDot:
    """A dot whose sum stays in one register."""

    def __init__(self, builder: Builder, initial: Value, code_bits: int) -> None:
        self._sum = initial

    def step(self, builder: Builder, weights: Value, activations: Value) -> None:
        """Add 64 products."""
        if not LLVM_TAKES_BYTES:
            weights, activations = (builder.bitcast(each, emit.I32S) for each in (weights, activations))
        arguments = [self._sum, weights, activations]
        self._sum = emit.call(builder, "llvm.x86.avx512.vpdpbusd.512", emit.I32S, arguments)

    def finish(self, builder: Builder) -> Value:
        """The sums so far."""
        return self._sum


def lookup(builder: Builder, table: Sequence[int], indices: Value) -> Value:
    """One vpshufb, with the table repeated in its four lanes."""
    return emit.call(builder, "llvm.x86.avx512.pshuf.b.512", emit.BYTES, [emit.byte_table(table, 4), indices])


def levels(builder: Builder, codes: Value, half: int) -> Value:
    """One vpermps, which reads the low four bits of an index, from the 16 numbers."""
    if half:
        codes = builder.lshr(codes, emit.repeated(emit.I32S, 4))
    table = ir.Constant(emit.F32S, [code - emit.MIDDLE for code in range(emit.LANES)])
    return emit.call(builder, "llvm.x86.avx512.permvar.sf.512", emit.F32S, [table, codes])


def gather(builder: Builder, table: Value, places: Value, n_bytes: int) -> Value:
    """One vpgatherdd for 4 bytes, two vpgatherdq for 8."""
    if n_bytes == 4:
        return _gathered(builder, "dpi", table, places, emit.I32)
    halves = (_gathered(builder, "dpq", table, half, emit.I64) for half in emit.parts(builder, places, 2))
    return builder.bitcast(emit.join(builder, *halves), ir.VectorType(emit.I32, 2 * emit.LANES))


def _gathered(builder: Builder, name: str, table: Value, places: Value, element: ir.Type) -> Value:
    """The elements at table + 8 * place."""
    count = places.type.count
    nothing = ir.Constant(ir.VectorType(element, count), [0] * count)
    every = ir.Constant(ir.VectorType(ir.IntType(1), count), [1] * count)
    arguments = [nothing, emit.pointer(builder, table, emit.I8), places, every, ir.Constant(emit.I32, 8)]
    return emit.call(builder, f"llvm.x86.avx512.mask.gather.{name}.512", nothing.type, arguments)


TARGET = Target("avx512vnni", 32, 64, VnniDot, lookup, emit.negated, levels)
