"""Vector values for Numba: a type whose data model is an LLVM vector, and operations on it as intrinsics.

A kernel is an ordinary @njit loop that reads like C intrinsics; LLVM keeps the values in registers. Addresses are
integers (numba intp): kernels receive their buffers by address. `Floats` is float32[16].
"""

from __future__ import annotations

import inspect
import platform

from llvmlite import ir
from numba import from_dtype, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from edgeinfer.jit import curves, emit
from edgeinfer.jit.targets import target

IS_ARM = platform.machine().lower() in {"arm64", "aarch64"}


class Vector(types.Type):
    """float32[16] in registers."""

    def __init__(self):
        super().__init__(name="Floats16")


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """Data model of a Vector: LLVM's <16 x float>."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, emit.F32S)


FLOATS = Vector()
ADDRESS = types.intp
FLOAT = types.float32
INT = types.int64


def operation(result, *arguments):
    """Turn `emitter(builder, *values) -> value` into an intrinsic of that signature."""
    signature = result(*arguments)

    def wrap(emitter):
        def generate(context, builder, _signature, values):
            value = emitter(builder, *values)
            return context.get_dummy_value() if value is None else value

        def define(typing_context, *_arguments):
            return signature, generate

        define.__name__ = define.__qualname__ = emitter.__name__
        define.__doc__ = emitter.__doc__
        emitted = list(inspect.signature(emitter).parameters.values())[1:]
        context = inspect.Parameter("typing_context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        define.__signature__ = inspect.Signature([context, *emitted])  # Numba needs an explicit parameter list
        return intrinsic(define)

    return wrap


@operation(FLOATS, ADDRESS)
def load(builder, address):
    """float32[16] at an address."""
    return emit.load_floats(builder, address)


@operation(types.void, ADDRESS, FLOATS)
def store(builder, address, value):
    """Write float32[16]."""
    emit.store(builder, value, address, align=4)


@operation(FLOATS, ADDRESS)
def load_halves(builder, address):
    """float16[16] at an address, as float32."""
    return emit.load_halves(builder, address)


@operation(types.void, ADDRESS, FLOATS)
def store_halves(builder, address, value):
    """Write float32[16] as float16[16], rounded to nearest even."""
    emit.store(builder, builder.fptrunc(value, emit.F16S), address, align=2)


@operation(types.void, ADDRESS, FLOAT)
def store_half(builder, address, value):
    """Write one float32 as float16."""
    emit.store(builder, builder.fptrunc(value, emit.F16), address, align=2)


@operation(FLOAT, ADDRESS)
def load_float(builder, address):
    """One float32."""
    return emit.load(builder, address, emit.F32, align=4)


@operation(types.void, ADDRESS, FLOAT)
def store_float(builder, address, value):
    """Write one float32."""
    emit.store(builder, value, address, align=4)


@operation(INT, ADDRESS)
def load_int32(builder, address):
    """One int32, widened."""
    return builder.sext(emit.load(builder, address, emit.I32, align=4), emit.I64)


@operation(types.void, ADDRESS, INT)
def store_int32(builder, address, value):
    """Write one int32."""
    emit.store(builder, builder.trunc(value, emit.I32), address, align=4)


@operation(INT, ADDRESS)
def load_int64(builder, address):
    """One int64."""
    return emit.load(builder, address, emit.I64, align=8)


@operation(types.void, ADDRESS, INT)
def store_int64(builder, address, value):
    """Write one int64."""
    emit.store(builder, value, address, align=8)


@operation(types.void, ADDRESS, ADDRESS)
def copy_16_bytes(builder, target, source):
    """Copy 16 bytes."""
    kind = ir.VectorType(emit.I8, 16)
    emit.store(builder, emit.load(builder, source, kind), target)


@operation(types.void, ADDRESS, ADDRESS)
def copy_2_bytes(builder, target, source):
    """Copy two bytes."""
    emit.store(builder, emit.load(builder, source, emit.I16), target)


@operation(FLOATS, FLOAT)
def splat(builder, value):
    """One float32 in all lanes."""
    return emit.splat(builder, value)


@operation(FLOATS, FLOATS, FLOATS)
def add(builder, x, y):
    """x + y."""
    return builder.fadd(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def sub(builder, x, y):
    """x - y."""
    return builder.fsub(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def mul(builder, x, y):
    """x * y."""
    return builder.fmul(x, y)


@operation(FLOATS, FLOATS, FLOATS)
def div(builder, x, y):
    """x / y."""
    return builder.fdiv(x, y)


@operation(FLOATS, FLOATS, FLOATS, FLOATS)
def fma(builder, x, y, z):
    """x * y + z with one rounding."""
    return emit.fma(builder, x, y, z)


@operation(FLOATS, FLOATS, FLOATS)
def maximum(builder, x, y):
    """The larger of two, lane by lane."""
    return curves.larger(builder, x, y)


@operation(FLOATS, FLOATS, FLOATS)
def keep_from(builder, x, least):
    """x in lanes whose magnitude is at least `least`, zero in the others and in NaN lanes."""
    size = emit.call(builder, "llvm.fabs.v16f32", emit.F32S, [x])
    return builder.select(builder.fcmp_ordered(">=", size, least), x, emit.repeated(emit.F32S, 0.0))


@operation(FLOATS, FLOATS)
def absolute(builder, x):
    """|x|."""
    return emit.call(builder, "llvm.fabs.v16f32", emit.F32S, [x])


@operation(FLOAT, FLOATS)
def sum_lanes(builder, x):
    """The sum of all lanes, by halves."""
    return emit.halve(builder, x, builder.fadd)


@operation(FLOAT, FLOAT)
def sqrt(builder, x):
    """The square root of one float32, rounded to nearest."""
    return emit.call(builder, "llvm.sqrt.f32", emit.F32, [x])


@operation(FLOAT, FLOATS)
def max_lanes(builder, x):
    """The largest lane."""
    return emit.halve(builder, x, lambda low, high: curves.larger(builder, low, high))


@operation(FLOATS, FLOATS, INT, INT, FLOAT)
def keep_lanes(builder, x, first, stop, other):
    """x in lanes first..stop-1, `other` in the rest."""
    lanes = ir.Constant(emit.I32S, list(range(emit.LANES)))
    above = builder.icmp_signed(">=", lanes, emit.splat(builder, builder.trunc(first, emit.I32)))
    below = builder.icmp_signed("<", lanes, emit.splat(builder, builder.trunc(stop, emit.I32)))
    return builder.select(builder.and_(above, below), x, emit.splat(builder, other))


@operation(INT, FLOATS)
def nonzero_lanes(builder, x):
    """A bit for each non-zero lane, the first lane in the lowest bit; NaN counts as non-zero."""
    differs = builder.fcmp_unordered("!=", x, emit.repeated(emit.F32S, 0.0))
    return builder.zext(builder.bitcast(differs, emit.I16), emit.I64)


@operation(INT, INT)
def trailing_zeros(builder, x):
    """Count the zero bits below the lowest one bit of a non-zero number."""
    return emit.call(builder, "llvm.cttz.i64", emit.I64, [x, ir.Constant(ir.IntType(1), 1)])


@operation(INT, INT)
def count_bits(builder, x):
    """Count the one bits."""
    return emit.call(builder, "llvm.ctpop.i64", emit.I64, [x])


exp = operation(FLOATS, FLOATS)(curves.exp)
tanh = operation(FLOATS, FLOATS)(curves.tanh)
xielu = operation(FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)(curves.xielu)


@intrinsic(prefer_literal=True)
def activated(typing_context, activation, x):
    """An activation, selected by its name as a literal."""

    def generate(context, builder, signature, values):
        return curves.ACTIVATIONS[activation.literal_value](builder, values[1])

    return FLOATS(activation, FLOATS), generate


@operation(INT, ADDRESS, FLOATS)
def store_rounded(builder, address, value):
    """Write float32[16] as int8[16], rounded to nearest even (values must be in -127..127); returns their sum."""
    rounded = emit.call(builder, "llvm.rint.v16f32", emit.F32S, [value])
    integers = builder.fptosi(rounded, emit.I32S)
    emit.store(builder, builder.trunc(integers, ir.VectorType(emit.I8, emit.LANES)), address)
    return builder.sext(emit.halve(builder, integers, builder.add), emit.I64)


@operation(INT, ADDRESS, INT)
def atomic_add(builder, address, value):
    """Atomically add to an int64; returns its previous value."""
    return builder.atomic_rmw("add", emit.pointer(builder, address, emit.I64), value, "acq_rel")


@operation(INT, ADDRESS, INT, INT)
def swap_if(builder, address, expected, value):
    """Compare and swap an int64, sequentially consistent; returns its previous value."""
    place = emit.pointer(builder, address, emit.I64)
    return builder.extract_value(builder.cmpxchg(place, expected, value, "seq_cst", "seq_cst"), 0)


@operation(INT, ADDRESS)
def load_acquire(builder, address):
    """Read an int64 with acquire ordering."""
    return builder.load_atomic(emit.pointer(builder, address, emit.I64), "acquire", 8)


@operation(types.void, ADDRESS, INT)
def store_release(builder, address, value):
    """Write an int64 with release ordering."""
    builder.store_atomic(value, emit.pointer(builder, address, emit.I64), "release", 8)


@operation(types.void)
def pause(builder):
    """Tell the core that this is a spin loop."""
    if IS_ARM:
        emit.call(builder, "llvm.aarch64.hint", emit.VOID, [ir.Constant(emit.I32, 1)])
    else:
        emit.call(builder, "llvm.x86.sse2.pause", emit.VOID, [])


@operation(types.void, ADDRESS)
def prefetch(builder, address):
    """Prefetch the cache line at any address into the second cache."""
    emit.prefetch(builder, address, nearness=2)


@operation(types.void, ADDRESS, ADDRESS, INT, INT)
def call_kernel(builder, function, arguments, worker, work_split):
    """Call the kernel at an address: (argument record, worker, work split)."""
    kind = ir.FunctionType(emit.VOID, [emit.I64] * 3).as_pointer()
    builder.call(builder.inttoptr(function, kind), [arguments, worker, work_split])


@operation(types.void, ADDRESS)
def call_plain(builder, function):
    """Call the C function at an address, which has no arguments (sched_yield)."""
    builder.call(builder.inttoptr(function, ir.FunctionType(emit.I32, []).as_pointer()), [])


@operation(INT, ADDRESS, INT, INT, INT, INT)
def call_system(builder, function, first, second, third, fourth):
    """Call the C function at an address with up to four integers or addresses (pread, read, write)."""
    kind = ir.FunctionType(emit.I64, [emit.I64] * 4).as_pointer()
    return builder.call(builder.inttoptr(function, kind), [first, second, third, fourth])


@operation(INT, ADDRESS, INT, ADDRESS, INT, INT)
def call_pread(builder, function, descriptor, memory, n_bytes, offset):
    """Call C's pread at an address: bytes read, or -1."""
    kind = ir.FunctionType(emit.I64, [emit.I32, emit.I64, emit.I64, emit.I64]).as_pointer()
    number = builder.trunc(descriptor, emit.I32)
    return builder.call(builder.inttoptr(function, kind), [number, memory, n_bytes, offset])


@operation(ADDRESS, ADDRESS)
def call_for_address(builder, function):
    """Call the C function at an address, which has no arguments and returns an address (__errno_location)."""
    return builder.call(builder.inttoptr(function, ir.FunctionType(emit.I64, []).as_pointer()), [])


@intrinsic(prefer_literal=True)
def stack_space(typing_context, n_bytes):
    """Address of that many bytes (a constant) on the stack, aligned to a vector, valid until the function returns."""

    def generate(context, builder, signature, values):
        with builder.goto_entry_block():
            space = builder.alloca(ir.ArrayType(emit.I8, n_bytes.literal_value))
        space.align = 64
        return builder.ptrtoint(space, emit.I64)

    return types.intp(n_bytes), generate


@intrinsic(prefer_literal=True)
def many_registers(typing_context, isa_name):
    """Whether a tile may hold 32 vectors; a constant where it is used."""
    found = target(isa_name.literal_value).vectors >= 32

    def generate(context, builder, signature, values):
        return context.get_constant(types.boolean, found)

    return types.boolean(isa_name), generate


def record_at(kind):
    """An intrinsic that gives in-place access to the record of a dtype at an address."""
    record = from_dtype(kind)

    @intrinsic
    def at_address(typing_context, address):
        def generate(context, builder, signature, values):
            return builder.inttoptr(values[0], context.get_value_type(record))

        return record(types.intp), generate

    return at_address
