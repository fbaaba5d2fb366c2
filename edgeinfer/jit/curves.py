"""Exponential and activation functions as LLVM IR on float32[16]; `simd` turns them into operations.

In: values in registers. Out: the same. Every function is a fixed chain of operations, so all CPUs give the same bits.
"""

from __future__ import annotations

from types import MappingProxyType

from llvmlite import ir

from edgeinfer.jit import emit
from edgeinfer.jit.emit import Builder, Value

EXP_COEFFICIENTS = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def constant(value: float) -> ir.Constant:
    """The same float32 in all lanes."""
    return emit.repeated(emit.F32S, value)


def larger(builder: Builder, x: Value, y: Value) -> Value:
    """The larger of two, lane by lane."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def exp(builder: Builder, x: Value) -> Value:
    """e^x, within 2 ulp on -87..88 and clamped there; exp(0) is exactly 1. Polynomial of Cephes' expf."""
    x = larger(builder, x, constant(-87.0))
    x = builder.select(builder.fcmp_ordered("<", x, constant(88.0)), x, constant(88.0))
    turns = emit.call(builder, "llvm.rint.v16f32", emit.F32S, [builder.fmul(x, constant(1.44269504088896341))])
    rest = emit.fma(builder, turns, constant(-0.693359375), x)
    rest = emit.fma(builder, turns, constant(2.12194440e-4), rest)
    power = constant(1.9875691500e-4)
    for coefficient in EXP_COEFFICIENTS:
        power = emit.fma(builder, power, rest, constant(coefficient))
    value = builder.fadd(emit.fma(builder, builder.fmul(rest, rest), power, rest), constant(1.0))
    exponent = builder.shl(builder.fptosi(turns, emit.I32S), emit.repeated(emit.I32S, 23))
    return builder.bitcast(builder.add(builder.bitcast(value, emit.I32S), exponent), emit.F32S)


def tanh(builder: Builder, x: Value) -> Value:
    """1 - 2 / (e^2x + 1)."""
    power = exp(builder, builder.fadd(x, x))
    return builder.fsub(constant(1.0), builder.fdiv(constant(2.0), builder.fadd(power, constant(1.0))))


def silu(builder: Builder, x: Value) -> Value:
    """x / (1 + e^-x)."""
    negative = builder.fsub(constant(0.0), x)
    return builder.fdiv(x, builder.fadd(constant(1.0), exp(builder, negative)))


def gelu_tanh(builder: Builder, x: Value) -> Value:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cube = builder.fmul(builder.fmul(x, x), x)
    inner = emit.fma(builder, constant(0.044715), cube, x)
    turned = tanh(builder, builder.fmul(constant(0.7978845608028654), inner))
    return builder.fmul(builder.fmul(constant(0.5), x), builder.fadd(constant(1.0), turned))


def relu(builder: Builder, x: Value) -> Value:
    """max(x, 0): +0 unless x is above 0, also for NaN."""
    return larger(builder, x, constant(0.0))


def relu2(builder: Builder, x: Value) -> Value:
    """max(x, 0) squared."""
    positive = relu(builder, x)
    return builder.fmul(positive, positive)


def sigmoid(builder: Builder, x: Value) -> Value:
    """1 / (1 + e^-x)."""
    return builder.fdiv(constant(1.0), builder.fadd(constant(1.0), exp(builder, builder.fsub(constant(0.0), x))))


ERF_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def gelu(builder: Builder, x: Value) -> Value:
    """0.5 x (1 + erf(x / sqrt(2))), as max(x, 0) - 0.5 |x| (1 - erf(|x| / sqrt(2))).

    The error function is formula 7.1.26 of Abramowitz and Stegun, within 1.5e-7.
    """
    absolute = larger(builder, x, builder.fsub(constant(0.0), x))
    z = builder.fmul(absolute, constant(0.7071067811865476))
    t = builder.fdiv(constant(1.0), emit.fma(builder, constant(0.3275911), z, constant(1.0)))
    power = constant(ERF_COEFFICIENTS[0])
    for coefficient in ERF_COEFFICIENTS[1:]:
        power = emit.fma(builder, power, t, constant(coefficient))
    rest = builder.fmul(builder.fmul(power, t), exp(builder, builder.fsub(constant(0.0), builder.fmul(z, z))))
    half = builder.fmul(constant(0.5), absolute)
    return builder.fsub(larger(builder, x, constant(0.0)), builder.fmul(half, rest))


def xielu(builder: Builder, x: Value, rise: Value, fall: Value, slope: Value, edge: Value) -> Value:
    """slope x + rise x^2 from zero on, slope x + fall (e^min(x, edge) - 1 - x) below. Padding stays zero."""
    least = builder.select(builder.fcmp_ordered("<", x, edge), x, edge)
    below = builder.fsub(builder.fsub(exp(builder, least), constant(1.0)), x)
    above = builder.fmul(builder.fmul(rise, x), x)
    bent = builder.select(builder.fcmp_ordered(">=", x, constant(0.0)), above, builder.fmul(fall, below))
    return emit.fma(builder, slope, x, bent)


def softplus(builder: Builder, x: Value) -> Value:
    """log(1 + e^x), as max(x, 0) + 2 artanh(s), s = z / (2 + z), z = e^-|x|: s is at most 1/3, nine terms suffice."""
    negative = builder.fsub(constant(0.0), x)
    z = exp(builder, builder.fsub(constant(0.0), larger(builder, x, negative)))
    s = builder.fdiv(z, builder.fadd(constant(2.0), z))
    square = builder.fmul(s, s)
    total = constant(2.0 / 17.0)
    for divisor in range(15, 0, -2):
        total = emit.fma(builder, total, square, constant(2.0 / divisor))
    return emit.fma(builder, total, s, larger(builder, x, constant(0.0)))


def gelu_quick(builder: Builder, x: Value) -> Value:
    """x / (1 + e^(-1.702 x))."""
    power = exp(builder, builder.fmul(x, constant(-1.702)))
    return builder.fdiv(x, builder.fadd(constant(1.0), power))


ACTIVATIONS = MappingProxyType(
    {
        "silu": silu,
        "gelu_tanh": gelu_tanh,
        "relu": relu,
        "relu2": relu2,
        "sigmoid": sigmoid,
        "gelu": gelu,
        "softplus": softplus,
        "gelu_quick": gelu_quick,
    }
)
"""Activations by their names in `ops.Activation`."""
