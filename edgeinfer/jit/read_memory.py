"""Reads memory as fast as a core can: as a product kernel would if it computed nothing.

Memory: reads 64-byte lines from `start` on, `lines` of them from each of `streams` streams that follow each other;
writes nothing. Returns a word that depends on every line, so that no load can be optimised away. The NumPy twin is the
exclusive or of all int64 words.
"""

from __future__ import annotations

from llvmlite import ir

from edgeinfer.jit import emit, simd
from edgeinfer.jit.memory import LINE_BYTES, LINES_PER_ROUND

PREFETCH_BYTES = 4096
WORDS = ir.VectorType(emit.I64, LINE_BYTES // 8)


def _prefetch(builder, address):
    """Prefetch the line at an address, which is read once soon."""
    pointer = builder.inttoptr(address, emit.I8.as_pointer())
    read, locality, data = (ir.Constant(emit.I32, value) for value in (0, 3, 1))
    kind = ir.FunctionType(emit.VOID, [pointer.type, emit.I32, emit.I32, emit.I32])
    function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, read, locality, data])


def _reading(streams: int, prefetch: bool):
    """The intrinsic for one pattern: (start, lines of a stream) -> exclusive or of all words."""

    def read_streams(builder, start, lines):
        round_bytes = emit.integer(LINE_BYTES * LINES_PER_ROUND)
        stream_bytes = builder.mul(lines, emit.integer(LINE_BYTES))
        starts = [builder.add(start, builder.mul(stream_bytes, emit.integer(stream))) for stream in range(streams)]

        def read_round(index, sums):
            offset = builder.mul(index, round_bytes)
            for stream, first in enumerate(starts):
                address = builder.add(first, offset)
                for line in range(LINES_PER_ROUND):
                    if prefetch:
                        _prefetch(builder, builder.add(address, emit.integer(line * LINE_BYTES + PREFETCH_BYTES)))
                    place = stream * LINES_PER_ROUND + line
                    words = emit.load(builder, address, WORDS, line * LINE_BYTES, LINE_BYTES)
                    sums[place] = builder.xor(sums[place], words)
            return sums

        rounds = builder.udiv(lines, emit.integer(LINES_PER_ROUND))
        zero = ir.Constant(WORDS, [0] * WORDS.count)
        sums = emit.loop(builder, rounds, [zero] * (streams * LINES_PER_ROUND), read_round)
        total = sums[0]
        for one in sums[1:]:
            total = builder.xor(total, one)
        return emit.halve(builder, total, builder.xor)

    read_streams.__name__ = f"read_{streams}{'_prefetched' if prefetch else ''}"
    return simd.operation(simd.INT, simd.ADDRESS, simd.INT)(read_streams)


_ONE, _ONE_AHEAD = _reading(1, False), _reading(1, True)
_TWO, _TWO_AHEAD = _reading(2, False), _reading(2, True)
_FOUR, _FOUR_AHEAD = _reading(4, False), _reading(4, True)


def read_one_stream(start, lines):
    """Forward through one stream."""
    return _ONE(start, lines)


def read_one_stream_ahead(start, lines):
    """Forward through one stream, with prefetching."""
    return _ONE_AHEAD(start, lines)


def read_two_streams(start, lines):
    """Forward through two streams in turn."""
    return _TWO(start, lines)


def read_two_streams_ahead(start, lines):
    """Forward through two streams in turn, with prefetching."""
    return _TWO_AHEAD(start, lines)


def read_four_streams(start, lines):
    """Forward through four streams in turn."""
    return _FOUR(start, lines)


def read_four_streams_ahead(start, lines):
    """Forward through four streams in turn, with prefetching."""
    return _FOUR_AHEAD(start, lines)
