"""What ops mean, in plain NumPy: the functions that the reference device is made of, and other devices' tests.

In: float32 rows. Out: float32 rows. Knows no buffers, weights or caches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PAGE, Floats, Step
from edgeinfer.ops import Router

ACTIVATION_BLOCK = 32
SMALLEST = 1e-30
"""Activation blocks without any larger value are zeros: 127 / largest must stay finite."""

LARGEST_HALF = np.float32(65504.0)


def context_slots(step: Step, token: int) -> NDArray[np.int64]:
    """KV slots a token attends to, by position: cached ones through the table, then its ancestors and itself."""
    start = int(step.starts[token])
    positions = np.arange(start)
    cached = step.tables[step.rows[token]].astype(np.int64)[positions // PAGE] * PAGE + positions % PAGE
    path: list[int] = []
    while token >= 0:
        path.append(int(step.slots[token]))
        token = int(step.batch.parents[token])
    return np.concatenate([cached, np.array(path[::-1], np.int64)])


def rms_norm(source: Floats, weight: Floats, groups: int, epsilon: float) -> Floats:
    """RMSNorm of each of `groups` slices of the rows (Zhang & Sennrich, arXiv 1910.07467)."""
    sliced = source.reshape(len(source), groups, source.shape[1] // groups)
    mean_square = np.mean(sliced * sliced, axis=-1, keepdims=True, dtype=np.float32)
    root: Floats = np.sqrt(mean_square + np.float32(epsilon))
    normed: Floats = sliced / root * weight
    return normed.reshape(source.shape)


def layer_norm(source: Floats, weight: Floats, bias: Floats, epsilon: float) -> Floats:
    """LayerNorm of the rows (Ba et al., arXiv 1607.06450)."""
    centred: Floats = source - np.mean(source, axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(centred * centred, axis=-1, keepdims=True, dtype=np.float32)
    deviation: Floats = np.sqrt(variance + np.float32(epsilon))
    normed: Floats = centred / deviation * weight + bias
    return normed


def rotate(value: Floats, heads: int, cosines: Floats, sines: Floats) -> Floats:
    """Rotate pairs (i, i + half) of each head: value float32[T, heads * K], cosines and sines float32[T, half]."""
    half = cosines.shape[1]
    split = value.reshape(len(value), heads, -1)
    first, second, rest = split[..., :half], split[..., half : 2 * half], split[..., 2 * half :]
    cos, sin = cosines[:, None, :], sines[:, None, :]
    rotated = np.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)
    return rotated.reshape(value.shape)


def round_activations(source: Floats) -> Floats:
    """Values after rounding to int8 per block of 32 with scale max / 127 (zero-padded to whole blocks)."""
    n_rows, width = source.shape
    padded = np.pad(source, ((0, 0), (0, -width % ACTIVATION_BLOCK))).reshape(n_rows, -1, ACTIVATION_BLOCK)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127.0), largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    rounded: Floats = np.rint(padded * inverse) * (largest / np.float32(127.0))
    return rounded.reshape(n_rows, -1)[:, :width]


def round_cached(source: Floats) -> Floats:
    """Values [..., K] after rounding to int8 per block of 32 with scale max / 127 as float16 (65504 at most)."""
    width = source.shape[-1]
    padded = np.pad(source.reshape(-1, width), ((0, 0), (0, -width % ACTIVATION_BLOCK)))
    padded = padded.reshape(len(padded), -1, ACTIVATION_BLOCK)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127.0), largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    scales = np.minimum(largest / np.float32(127.0), LARGEST_HALF).astype(np.float16).astype(np.float32)
    rounded: Floats = np.rint(padded * inverse) * scales
    return rounded.reshape(len(rounded), -1)[:, :width].reshape(source.shape)


def silu(gate: Floats) -> Floats:
    """x * sigmoid(x)."""
    power: Floats = np.exp(-np.clip(gate, np.float32(-87.0), None))
    return gate / (np.float32(1.0) + power)


def gelu_tanh(gate: Floats) -> Floats:
    """The tanh form of GELU (Hendrycks & Gimpel, arXiv 1606.08415)."""
    inner = np.float32(0.7978845608028654) * (gate + np.float32(0.044715) * gate**3)
    turned: Floats = np.tanh(inner)
    return np.float32(0.5) * gate * (np.float32(1.0) + turned)


def routed_shares(scores: Floats, op: Router) -> Floats:
    """The shares of the experts in each row: float32[T, E], as `ops.Router` says."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    if op.scoring == "sigmoid":
        shares = np.float32(1.0) / (np.float32(1.0) + np.exp(-scores))
    chosen = np.argsort(-scores, axis=-1, kind="stable")[:, : op.active]
    kept = np.zeros_like(shares)
    np.put_along_axis(kept, chosen, np.take_along_axis(shares, chosen, axis=-1), axis=-1)
    if op.normalised:
        kept /= kept.sum(axis=-1, keepdims=True)
    scaled: Floats = kept * np.float32(op.scale)
    return scaled


def relu(gate: Floats) -> Floats:
    """max(x, 0)."""
    return np.maximum(gate, np.float32(0.0))


def relu2(gate: Floats) -> Floats:
    """max(x, 0) squared (So et al., arXiv 2109.08668)."""
    return np.square(relu(gate))


def cut(activated: Floats, threshold: float) -> Floats:
    """Activated values with zeros for those whose magnitude is below a threshold, if there is one."""
    if not threshold:
        return activated
    kept: Floats = np.where(np.abs(activated) >= np.float32(threshold), activated, np.float32(0.0))
    return kept


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh, "relu": relu, "relu2": relu2}
