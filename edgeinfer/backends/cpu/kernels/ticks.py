"""The core's time stamp counter and the full memory fence, for loops that may not call the system.

A tick is a fixed time that only `worker_pool` turns into seconds: on x86 the time stamp counter, on ARM the virtual
counter.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types

from edgeinfer.jit import emit, simd


@simd.operation(simd.INT)
def ticks(builder):
    """The time stamp counter now."""
    if simd.IS_ARM:  # the counter that llvm.readcyclecounter takes there traps outside the kernel
        return builder.asm(ir.FunctionType(emit.I64, []), "mrs $0, cntvct_el0", "=r", [], side_effect=True)
    return emit.call(builder, "llvm.readcyclecounter", emit.I64, [])


@simd.operation(types.void)
def fence(builder):
    """No later load moves before an earlier store."""
    builder.fence("seq_cst")
