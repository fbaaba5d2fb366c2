"""Ops on single rows: norms, rotary embedding, activations, sums, soft caps, row selection.

A row belongs to one block, which adds in an order that depends on the row's width alone. Twins: the functions of
`reference`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

from edgeinfer.backends.cuda.kernels.intrinsics import LANES, NORM_WARPS, lane_sum

LOWEST_POWER = np.float32(-87.0)
"""exp of anything lower is almost zero, and exp of its negative overflows float32."""


def rms_norm(weighted: bool):
    """Kernel: a block of (LANES, NORM_WARPS) threads per slice; grid (slices of a row, tokens).

    Not `weighted`: no weight is read.
    """

    @cuda.jit
    def norm(x, weight, out, width, x_stride, out_stride, epsilon):
        """x float32[tokens, x_stride] -> out float32[tokens, out_stride], which may be x; weight float32[width]."""
        warp_sums = cuda.shared.array(NORM_WARPS, np.float32)
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        start = cuda.blockIdx.y * x_stride + cuda.blockIdx.x * width
        target = cuda.blockIdx.y * out_stride + cuda.blockIdx.x * width
        thread = warp * LANES + lane
        squares = np.float32(0)
        for column in range(thread, width, LANES * NORM_WARPS):
            value = x[start + column]
            squares = cuda.fma(value, value, squares)
        squares = lane_sum(squares)
        if lane == 0:
            warp_sums[warp] = squares
        cuda.syncthreads()
        total = np.float32(0)
        for place in range(NORM_WARPS):
            total += warp_sums[place]
        root = np.float32(math.sqrt(total / np.float32(width) + epsilon))
        for column in range(thread, width, LANES * NORM_WARPS):
            value = x[start + column] / root
            out[target + column] = value * weight[column] if weighted else value

    return norm


@cuda.jit(device=True)
def sum_of_warps(warp_sums):
    """The sum of the warps' partial sums in a block."""
    total = np.float32(0)
    for place in range(NORM_WARPS):
        total += warp_sums[place]
    return total


def layer_norm(weighted: bool, biased: bool):
    """Kernel: a block of (LANES, NORM_WARPS) threads per row; grid (1, tokens). Missing weight or bias is not read."""

    @cuda.jit
    def norm(x, weight, bias, out, width, x_stride, out_stride, epsilon):
        """x float32[tokens, x_stride] -> out float32[tokens, out_stride], or in place; weight, bias float32[width]."""
        sums = cuda.shared.array(NORM_WARPS, np.float32)
        squares = cuda.shared.array(NORM_WARPS, np.float32)
        start, target = cuda.blockIdx.y * x_stride, cuda.blockIdx.y * out_stride
        thread = cuda.threadIdx.y * LANES + cuda.threadIdx.x
        total = np.float32(0)
        for column in range(thread, width, LANES * NORM_WARPS):
            total += x[start + column]
        total = lane_sum(total)
        if cuda.threadIdx.x == 0:
            sums[cuda.threadIdx.y] = total
        cuda.syncthreads()
        mean = sum_of_warps(sums) / np.float32(width)
        total = np.float32(0)
        for column in range(thread, width, LANES * NORM_WARPS):
            value = x[start + column] - mean
            total = cuda.fma(value, value, total)
        total = lane_sum(total)
        if cuda.threadIdx.x == 0:
            squares[cuda.threadIdx.y] = total
        cuda.syncthreads()
        root = np.float32(math.sqrt(sum_of_warps(squares) / np.float32(width) + epsilon))
        for column in range(thread, width, LANES * NORM_WARPS):
            value = (x[start + column] - mean) / root
            if weighted and biased:
                value = cuda.fma(value, weight[column], bias[column])
            elif weighted:
                value = value * weight[column]
            elif biased:
                value = value + bias[column]
            out[target + column] = value

    return norm


def rope():
    """Kernel: a thread per pair; grid (pairs of a row / block width, tokens)."""

    @cuda.jit
    def rotate(x, cosines, sines, step, positions_at, n_heads, head_width, half, stride):
        """x float32[tokens, stride], in place; cosines, sines float32[context, half]; positions in `step`."""
        pair = cuda.grid(1)
        if pair >= n_heads * half:
            return
        token = cuda.blockIdx.y
        at = token * stride + pair // half * head_width + pair % half
        angle = step[positions_at + token] * half + pair % half
        cosine, sine = cosines[angle], sines[angle]
        first, second = x[at], x[at + half]
        x[at] = cuda.fma(first, cosine, -(second * sine))
        x[at + half] = cuda.fma(first, sine, second * cosine)

    return rotate


@cuda.jit(device=True)
def silu(gate):
    """SiLU: x * sigmoid(x)."""
    return gate / (np.float32(1) + np.float32(math.exp(-max(gate, LOWEST_POWER))))


@cuda.jit(device=True)
def gelu_tanh(gate):
    """GELU, tanh approximation."""
    cube = gate * gate * gate
    inner = np.float32(0.7978845608028654) * cuda.fma(np.float32(0.044715), cube, gate)
    return np.float32(0.5) * gate * (np.float32(1) + np.float32(math.tanh(inner)))


@cuda.jit(device=True)
def relu(gate):
    """ReLU: max(x, 0)."""
    return gate if gate > np.float32(0) else np.float32(0)


@cuda.jit(device=True)
def gelu(gate):
    """GELU: x times the normal cumulative distribution function."""
    share = np.float32(math.erf(gate * np.float32(0.7071067811865476)))
    return np.float32(0.5) * gate * (np.float32(1) + share)


@cuda.jit(device=True)
def sigmoid(gate):
    """Sigmoid: 1 / (1 + e^-x)."""
    return np.float32(1) / (np.float32(1) + np.float32(math.exp(-max(gate, LOWEST_POWER))))


@cuda.jit(device=True)
def relu2(gate):
    """Squared ReLU: max(x, 0) squared."""
    return relu(gate) * relu(gate)


@cuda.jit(device=True)
def softplus(gate):
    """Softplus: log(1 + e^x)."""
    return relu(gate) + np.float32(math.log1p(math.exp(-abs(gate))))


@cuda.jit(device=True)
def gelu_quick(gate):
    """GELU, sigmoid approximation."""
    return gate * sigmoid(np.float32(1.702) * gate)


ACTIVATIONS = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "relu2": relu2,
    "sigmoid": sigmoid,
    "gelu": gelu,
    "softplus": softplus,
    "gelu_quick": gelu_quick,
}


def plain(activation):
    """Kernel: a thread per number; grid (width / block width, tokens)."""
    activate = ACTIVATIONS[activation]

    @cuda.jit
    def act(x, out, width, stride):
        """out = activation(x), float32[tokens, stride] each."""
        column = cuda.grid(1)
        if column < width:
            at = cuda.blockIdx.y * stride + column
            out[at] = activate(x[at])

    return act


def gated(activation):
    """Kernel: a thread per number; grid (width / block width, tokens)."""
    activate = ACTIVATIONS[activation]

    @cuda.jit
    def act(gate, up, out, width, stride):
        """out = activation(gate) * up, float32[tokens, stride] each."""
        column = cuda.grid(1)
        if column < width:
            at = cuda.blockIdx.y * stride + column
            out[at] = activate(gate[at]) * up[at]

    return act


def addition():
    """Kernel: a thread per number; grid (width / block width, rows)."""

    @cuda.jit
    def add(source, out, width, source_stride, out_stride):
        """out += source, float32[rows, stride] each."""
        column = cuda.grid(1)
        if column < width:
            at = cuda.blockIdx.y * out_stride + column
            out[at] = out[at] + source[cuda.blockIdx.y * source_stride + column]

    return add


def soft_cap():
    """Kernel: a thread per number; grid (width / block width, rows)."""

    @cuda.jit
    def cap(value, width, stride, limit):
        """value = limit * tanh(value / limit), float32[rows, stride], in place."""
        column = cuda.grid(1)
        if column < width:
            at = cuda.blockIdx.y * stride + column
            value[at] = limit * np.float32(math.tanh(value[at] / limit))

    return cap


def scaling():
    """Kernel: a thread per number; grid (width / block width, rows)."""

    @cuda.jit
    def scale(value, width, stride, factor):
        """value = factor * value, float32[rows, stride], in place."""
        column = cuda.grid(1)
        if column < width:
            at = cuda.blockIdx.y * stride + column
            value[at] = factor * value[at]

    return scale


def joining():
    """Kernel: a thread per number; grid (width / block width, rows)."""

    @cuda.jit
    def join(first, second, out, heads, first_width, second_width, second_step, first_stride, second_stride, stride):
        """Each head of out float32[rows, stride]: one of first, then of second, `second_step` apart (0: shared)."""
        column, width = cuda.grid(1), first_width + second_width
        if column >= heads * width:
            return
        row, head, place = cuda.blockIdx.y, column // width, column % width
        if place < first_width:
            out[row * stride + column] = first[row * first_stride + head * first_width + place]
        else:
            at = row * second_stride + head * second_step + place - first_width
            out[row * stride + column] = second[at]

    return join


def taking():
    """Kernel: a thread per number; grid (width / block width, outputs)."""

    @cuda.jit
    def take(source, out, step, outputs_at, width, source_stride, out_stride):
        """out[o] = source[row of output o], float32[rows, stride] each; rows in `step`."""
        column = cuda.grid(1)
        if column < width:
            row = step[outputs_at + cuda.blockIdx.y]
            out[cuda.blockIdx.y * out_stride + column] = source[row * source_stride + column]

    return take
