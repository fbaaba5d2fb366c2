"""Packing: moves bits of 16 rows at a time into panels, as a recipe says.

Memory: PACKING_JOB[n_jobs], each with rows int64[n_panels * 16], addresses of rows, out uint8[n_panels, panel_bytes],
and a recipe's stores STORE[n_stores] and terms TERM[sum of n_terms] (`recipes`). A record takes `source_bytes` of each
row, SOURCE_BYTES at most. A store writes a number of `row_bits` (1, 8, 16 or 32) per row at `at` of the record: the
low bits of `flip` ^ all its terms. A term takes the 32 bits at `byte`: ((bits >> shift & keep) * factor) & mask. Floats
are moved as bits. NumPy twin: reading the panel back gives what the format's `unpack` gives.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core.cgutils import raw_memcpy
from numba.extending import intrinsic

from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS
from edgeinfer.backends.cpu.layout.recipes import SOURCE_BYTES, STORE, TERM
from edgeinfer.backends.cpu.layout.records import PACKING_JOB
from edgeinfer.jit import emit, simd

COPY_BYTES = SOURCE_BYTES + 16
"""A row's part of a record plus the bytes that a word at its end reads beyond it; no multiple of 64."""
COPIES_BYTES = PANEL_ROWS * COPY_BYTES
JOB_BYTES = PACKING_JOB.itemsize
job_at = simd.record_at(PACKING_JOB)


def field(builder, record, kind, name):
    """A 32-bit field of a STORE or TERM."""
    assert kind.fields is not None
    return emit.load(builder, record, emit.I32, kind.fields[name][1], 4)


def copy_rows(builder, rows, at, count, copies):
    """Copy `count` bytes of each row, from `at` on, side by side: strides of whole pages would share one cache set."""
    for lane in range(PANEL_ROWS):
        row = builder.add(emit.load(builder, rows, emit.I64, 8 * lane, 8), at)
        source, target = emit.pointer(builder, row, emit.I8), emit.pointer(builder, copies, emit.I8, lane * COPY_BYTES)
        raw_memcpy(builder, target, source, count, 1)


def gathered(builder, copies, byte):
    """int32[16]: 32 bits of each row's copy."""
    address = builder.add(copies, byte)
    words = ir.Constant(emit.I32S, ir.Undefined)
    for lane in range(PANEL_ROWS):
        word = emit.load(builder, address, emit.I32, lane * COPY_BYTES)
        words = builder.insert_element(words, word, ir.Constant(emit.I32, lane))
    return words


def summed_terms(builder, copies, terms, count, total):
    """int32[16]: `total` ^ the terms."""

    def step(index, carried):
        term = builder.add(terms, builder.mul(index, emit.integer(TERM.itemsize)))
        byte = builder.zext(field(builder, term, TERM, "byte"), emit.I64)
        shift, keep, factor, mask = (
            emit.splat(builder, field(builder, term, TERM, name)) for name in ("shift", "keep", "factor", "mask")
        )
        bits = builder.lshr(gathered(builder, copies, byte), shift)
        return [builder.xor(carried[0], builder.and_(builder.mul(builder.and_(bits, keep), factor), mask))]

    return emit.loop(builder, count, [total], step)[0]


def narrowed(builder, numbers, size):
    """The low `size` bits of int32[16], one row after another."""
    if size == 32:
        return numbers
    if size >= 8:
        return builder.trunc(numbers, ir.VectorType(ir.IntType(size), PANEL_ROWS))
    wide = ir.VectorType(emit.I64, PANEL_ROWS)
    low = builder.and_(builder.zext(numbers, wide), emit.repeated(wide, (1 << size) - 1))
    placed = builder.shl(low, ir.Constant(wide, [size * row for row in range(PANEL_ROWS)]))
    joined = emit.call(builder, f"llvm.vector.reduce.or.v{PANEL_ROWS}i64", emit.I64, [placed])
    return builder.trunc(joined, ir.IntType(size * PANEL_ROWS))


@intrinsic
def pack_record(context, rows, at, source_bytes, copies, out, stores, n_stores, terms):
    """Pack one record of 16 rows from `source_bytes` of each, `at` bytes into them."""

    def generate(context, builder, signature, values):
        rows, at, source_bytes, copies, out, stores, n_stores, terms = values
        copy_rows(builder, rows, at, source_bytes, copies)

        def step(index, carried):
            store = builder.add(stores, builder.mul(index, emit.integer(STORE.itemsize)))
            count = builder.zext(field(builder, store, STORE, "n_terms"), emit.I64)
            flip = emit.splat(builder, field(builder, store, STORE, "flip"))
            total = summed_terms(builder, copies, carried[0], count, flip)
            target = builder.add(out, builder.zext(field(builder, store, STORE, "at"), emit.I64))
            row_bits = field(builder, store, STORE, "row_bits")
            for size in (1, 8, 16, 32):
                with builder.if_then(builder.icmp_unsigned("==", row_bits, ir.Constant(emit.I32, size))):
                    emit.store(builder, narrowed(builder, total, size), target)
            return [builder.add(carried[0], builder.mul(count, emit.integer(TERM.itemsize)))]

        emit.loop(builder, n_stores, [terms], step)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 8), generate


def pack_panels(jobs, n_jobs):
    """Do some jobs, each of which packs equal records of some panels."""
    copies = simd.stack_space(COPIES_BYTES)
    for number in range(n_jobs):
        job = job_at(jobs + number * JOB_BYTES)
        for panel in range(job.n_panels):
            rows, at, out = job.rows + 8 * PANEL_ROWS * panel, job.skip, job.out + panel * job.panel_bytes
            for _ in range(job.n_records):
                pack_record(rows, at, job.source_bytes, copies, out, job.stores, job.n_stores, job.terms)
                at += job.source_bytes
                out += job.record_bytes
