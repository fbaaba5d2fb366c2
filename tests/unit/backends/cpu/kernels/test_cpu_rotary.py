"""Rotary embedding against the reference device."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.step_records import STEP
from edgeinfer.graph.ops.rope import rotate
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, call, same_bits

Floats = NDArray[np.float32]


def in_heads(values: Floats, heads: int, width: int) -> Floats:
    """Rows float32[T + 1, heads, padded] whose heads are padded to whole vectors; the last row must not be touched."""
    padded: Floats = aligned((len(values) + 1, heads, -(-width // 16) * 16), np.float32)
    padded[:-1, :, :width] = values.reshape(len(values), heads, width)
    padded[-1] = UNTOUCHED
    return padded


def step_of(**arrays: NDArray[np.int32]) -> NDArray[np.void]:
    record = np.zeros(1, STEP)
    for name, values in arrays.items():
        record["n_tokens"] = len(values)
        record[name] = values.ctypes.data
    return record


@pytest.mark.parametrize(
    ("heads", "width", "rotary_width"), [(3, 64, 64), (2, 16, 16), (4, 96, 96), (2, 96, 72), (1, 24, 10), (2, 128, 64)]
)
def test_rotation(library: KernelLibrary, heads: int, width: int, rotary_width: int) -> None:
    random = np.random.default_rng(width)
    half = rotary_width // 2
    cosines, sines = (random.uniform(-1, 1, (50, half)).astype(np.float32) for _ in range(2))
    values = random.standard_normal((9, heads * width)).astype(np.float32)
    positions = random.permutation(50)[:9].astype(np.int32)
    expected = rotate(values, heads, cosines[positions], sines[positions])
    for workers in (1, 2, 4):
        padded = in_heads(values, heads, width)
        call(
            library,
            catalogue.ROPE,
            workers,
            value=padded,
            stride=padded.strides[0],
            heads=heads,
            head_stride=padded.strides[1],
            parts=heads // 2 if heads % 2 == 0 else heads,
            half=half,
            cosines=cosines,
            sines=sines,
            step=step_of(turns=positions),
        )
        assert np.allclose(padded[:-1, :, :width].reshape(9, -1), expected, rtol=1e-6, atol=1e-6)
        assert same_bits(padded[:-1, :, rotary_width:width], values.reshape(9, heads, width)[..., rotary_width:].copy())
        assert not padded[:-1, :, width:].any()
        assert np.all(padded[-1] == UNTOUCHED)
