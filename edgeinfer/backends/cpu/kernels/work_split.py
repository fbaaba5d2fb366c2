"""Which worker takes which part of a call: the record that every kernel receives beside its worker number.

Memory: int64[2 + size]: the number of workers, then `size + 1` cuts in parts of WHOLE, from 0 to WHOLE. Worker w takes
items `share_start(work_split, w, n)` to `share_start(work_split, w + 1, n)` of n, so calls with equal counts give each
worker the same items. Uneven cuts give faster cores more. Knows nothing of cores or speeds.

Also the core's time stamp counter and the full memory fence, for loops that may not call the system. A tick is a fixed
time that only `worker_pool` turns into seconds: on x86 the time stamp counter, on ARM the virtual counter.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from edgeinfer.backends.base import WHOLE
from edgeinfer.jit import emit, simd
from edgeinfer.jit.compiler import inline


@inline
def share_start(work_split, worker, count):
    """First of `count` items of a worker; for worker `size` it is `count`."""
    return (count * simd.load_int64(work_split + 8 + 8 * worker) + 32768) // 65536


@inline
def is_mine(work_split, worker, task):
    """Whether a task belongs to a worker, when tasks that grow or shrink along the way are dealt out like cards."""
    turn = ((task & 1) << 5 | (task & 2) << 3 | (task & 4) << 1 | (task & 8) >> 1 | (task & 16) >> 3) + 1
    turn = turn * (WHOLE // 64)  # bits of the task reversed: neighbouring tasks go to different workers
    return simd.load_int64(work_split + 8 + 8 * worker) <= turn and turn < simd.load_int64(work_split + 16 + 8 * worker)


@inline
def size(work_split):
    """The number of workers that take part."""
    return simd.load_int64(work_split)


@simd.operation(simd.INT)
def ticks(builder):
    """The time stamp counter now."""
    if simd.IS_ARM:  # the counter that llvm.readcyclecounter takes there traps outside the kernel
        counter = builder.module.add_metadata([ir.MetaDataString(builder.module, "cntvct_el0")])
        return emit.call(builder, "llvm.read_volatile_register.i64", emit.I64, [counter])
    return emit.call(builder, "llvm.readcyclecounter", emit.I64, [])


@simd.operation(types.void)
def fence(builder):
    """No later load moves before an earlier store."""
    builder.fence("seq_cst")
