"""Operations that Numba's CUDA simulator lacks, implemented twice: as GPU instructions and in Python.

They are vector loads of 16 bytes, dot products of four bytes, bit patterns of floats, and sums and maxima over the
lanes of a warp. LANES threads work on one row together: a warp, or two threads in the simulator, where each is a Python
thread (EDGEINFER_CUDASIM_LANES: another power of two). Additions follow the same butterfly for any number of lanes.
"""

from __future__ import annotations

import os
import threading

import numpy as np
from numba import cuda
from numba.cuda import config

SIMULATED = bool(config.ENABLE_CUDASIM)
LANES = int(os.environ.get("EDGEINFER_CUDASIM_LANES", "2")) if SIMULATED else 32

THREADS = 8 if SIMULATED else 128
"""Threads per block if each works independently."""
NORM_WARPS = 2 if SIMULATED else 8
"""Warps per block for the norm of a row."""

if SIMULATED:

    class _Meeting:
        """Where the simulated lanes of a warp exchange values."""

        def __init__(self):
            self.values = [None] * LANES
            self.barrier = threading.Barrier(LANES)

    def _exchanged(value):
        """The values of all lanes, in order, and this lane's number."""
        thread = threading.current_thread()
        warp, lane = divmod(thread.thread_id, LANES)
        meeting = thread._manager.__dict__.setdefault(f"meeting {warp}", _Meeting())
        meeting.values[lane] = value
        meeting.barrier.wait(60)
        values = list(meeting.values)
        meeting.barrier.wait(60)
        return values, lane

    def lane_sum(value):
        """Sum over the lanes, by a butterfly: bit-identical in every lane."""
        if LANES == 1:
            return np.float32(value)
        values, lane = _exchanged(np.float32(value))
        offset = LANES // 2
        while offset:
            values = [values[place] + values[place ^ offset] for place in range(LANES)]
            offset //= 2
        return values[lane]

    def lane_max(value):
        """Maximum over the lanes."""
        if LANES == 1:
            return np.float32(value)
        return max(_exchanged(np.float32(value))[0])

    def load4(array, index):
        """Four consecutive 32-bit numbers of a flat array from `index`, a multiple of 4."""
        assert index % 4 == 0
        return array[index], array[index + 1], array[index + 2], array[index + 3]

    def load2(array, index):
        """Two consecutive 32-bit numbers of a flat array from `index`, a multiple of 2."""
        assert index % 2 == 0
        return array[index], array[index + 1]

    _SIGNED = tuple(byte - 256 if byte > 127 else byte for byte in range(256))

    def dp4a(first, second, total):
        """total + the dot product of the four signed bytes of two words: int32."""
        a, b, s = int(first), int(second), _SIGNED
        result = s[a & 255] * s[b & 255] + s[a >> 8 & 255] * s[b >> 8 & 255]
        result += s[a >> 16 & 255] * s[b >> 16 & 255] + s[a >> 24] * s[b >> 24]
        return np.int32(int(total) + result)

    _HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

    def half_of(bits):
        """The float32 of a float16's bits."""
        return _HALVES[bits]

    def half_bits(value):
        """The bits of a float32 rounded to float16: uint16."""
        with np.errstate(over="ignore"):
            return np.float32(value).astype(np.float16).view(np.uint16)

    def float_of(word):
        """The float32 with these bits."""
        return np.uint32(word).view(np.float32)

else:
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic

    _HALF, _FLOAT, _I16 = ir.HalfType(), ir.FloatType(), ir.IntType(16)

    @cuda.jit(device=True)
    def lane_sum(value):
        offset = 16
        while offset > 0:
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, offset)
            offset //= 2
        return value

    @cuda.jit(device=True)
    def lane_max(value):
        offset = 16
        while offset > 0:
            value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, offset))
            offset //= 2
        return value

    def _load(count):
        """A load of `count` consecutive numbers at once; the address must be a multiple of its size."""

        @intrinsic
        def load(typing_context, array, index):
            result = types.UniTuple(array.dtype, count)

            def generate(context, builder, signature, arguments):
                held = context.make_array(signature.args[0])(context, builder, arguments[0])
                vector = ir.VectorType(context.get_data_type(array.dtype), count)
                place = builder.gep(held.data, [arguments[1]])
                loaded = builder.load(builder.bitcast(place, vector.as_pointer()), align=4 * count)
                parts = [builder.extract_element(loaded, ir.Constant(ir.IntType(32), part)) for part in range(count)]
                return context.make_tuple(builder, signature.return_type, parts)

            return result(array, types.int64), generate

        return load

    load4 = _load(4)
    load2 = _load(2)

    @intrinsic
    def dp4a(typing_context, first, second, total):
        def generate(context, builder, signature, arguments):
            word = ir.IntType(32)
            asm = ir.InlineAsm(ir.FunctionType(word, [word] * 3), "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r")
            return builder.call(asm, arguments)

        return types.int32(types.uint32, types.uint32, types.int32), generate

    @intrinsic
    def half_of(typing_context, bits):
        def generate(context, builder, signature, arguments):
            return builder.fpext(builder.bitcast(arguments[0], _HALF), _FLOAT)

        return types.float32(types.uint16), generate

    @intrinsic
    def half_bits(typing_context, value):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(builder.fptrunc(arguments[0], _HALF), _I16)

        return types.uint16(types.float32), generate

    @intrinsic
    def float_of(typing_context, word):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], _FLOAT)

        return types.float32(types.uint32), generate
