"""Weights as OpenVINO is given them: every format means what the gguf package reads, in the bytes it says."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.openvino.constants import StoredMatrix, form_of, store
from edgeinfer.models.quants import FORMATS, BlockFormat, format_of
from tests.unit.backends.random_blocks import exact_values, ordinary_rows

ROWS, COLUMNS = 6, 512


def meant(stored: StoredMatrix) -> NDArray[np.float32]:
    """What a graph makes of the arrays: float32[N, K], columns for sums added to those they stand for."""
    form = stored.form
    if form.code == "f16":
        return stored.codes.view(np.float16).astype(np.float32)
    if form.code == "bf16":
        return (stored.codes.astype(np.uint32) << 16).view(np.float32)
    if form.code == "f32":
        return stored.codes.astype(np.float32)
    assert stored.scale is not None
    assert stored.zero is not None
    codes = unpacked(stored.codes.view(np.uint8), form.code).reshape(*stored.scale.shape[:2], form.group)
    zero = np.float32(stored.zero.item()) if form.zero is not None else unpacked(stored.zero, form.code)
    if isinstance(zero, np.ndarray):
        zero = zero[: stored.scale.size].reshape(stored.scale.shape)
    values = ((codes - zero) * stored.scale.astype(np.float32)).reshape(len(codes), -1)
    sums = values[:, stored.columns : stored.columns + stored.columns // form.group]
    own = values[:, : stored.columns]
    return own + np.repeat(sums, form.group, axis=1) if form.has_sums else own


def unpacked(packed: NDArray[np.uint8], code: str) -> NDArray[np.float32]:
    pairs = np.stack([packed & 15, packed >> 4], axis=-1) if code == "u4" else packed
    return pairs.reshape(-1).astype(np.float32)


def random_rows(name: str) -> NDArray[np.uint8]:
    """Random bytes whose scales are finite and of one size."""
    form = FORMATS.get(name)
    random = np.random.default_rng(3)
    n_blocks = COLUMNS // form.block_size
    if not isinstance(form, BlockFormat):
        values = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType(form.ggml_type)).view(np.uint8).reshape(ROWS, -1)
    if form.layout is not None and (form.layout.unit == "e4m3" or not isinstance(form.layout.scale, int)):
        return ordinary_rows(form, ROWS, COLUMNS, random)
    raw = random.integers(0, 256, (ROWS, n_blocks, form.block_bytes), dtype=np.uint8)
    if form.layout is not None:
        halves = random.uniform(0.01, 0.02, (ROWS, n_blocks, 1)).astype(np.float16)
        if form.layout.unit == "f16":
            raw[:, :, form.layout.scale : form.layout.scale + 2] = halves.view(np.uint8)
        if form.layout.minimum is not None:
            sign = -7 if form.f16_scales else 1  # minima of K formats are subtracted
            minima = (halves * random.uniform(0.9, 1.1, halves.shape) * sign).astype(np.float16)
            raw[:, :, form.layout.minimum : form.layout.minimum + 2] = minima.view(np.uint8)
        if form.layout.unit == "e8m0":
            raw[:, :, form.layout.scale] = random.integers(118, 128, (ROWS, n_blocks))
    return raw.reshape(ROWS, -1)


def largest_error(form: BlockFormat, raw: NDArray[np.uint8]) -> float:
    """Half a step of what is left of the minima beside whole zero points, where it is largest."""
    codes, steps = form.unpack(raw), 15 if form_of(form).code == "u4" else 255
    assert codes.minimum is not None
    scale = np.where(codes.scale == 0, 1, codes.scale)
    whole = np.clip(np.rint(-codes.minimum / scale), 0, steps) * codes.scale
    return float(1.001 * np.abs(codes.minimum + whole).max() / (steps - 1))


@pytest.mark.parametrize("name", FORMATS.keys())
def test_every_format_means_what_gguf_reads(name: str) -> None:
    form, raw = FORMATS.get(name), random_rows(name)
    if isinstance(form, BlockFormat) and form.layout is None:
        pytest.skip("no layout says where the scales of random blocks lie")
    exact = exact_values(raw, form)
    assert np.isfinite(exact).all()
    found = meant(store(raw, form, COLUMNS))
    if isinstance(form, BlockFormat) and form.has_minimum:
        assert np.abs(found - exact).max() <= largest_error(form, raw)
    else:
        assert found.tobytes() == exact.astype(np.float32).tobytes()


@pytest.mark.parametrize("name", FORMATS.keys())
def test_forms_know_their_size(name: str) -> None:
    form, raw = FORMATS.get(name), random_rows(name)
    assert store(raw, form, COLUMNS).nbytes == form_of(form).nbytes(ROWS, COLUMNS)


def test_four_bits_stay_four_bits() -> None:
    assert form_of(format_of(gguf.GGMLQuantizationType.Q4_0)).nbytes(32, 512) == 32 * 512 // 2 + 1 + 32 * 16 * 2


def test_a_group_without_scale_keeps_its_minimum() -> None:
    form = FORMATS.get("q4_1")
    raw = np.zeros((1, COLUMNS // 32, 20), np.uint8)
    raw[:, :, 2:4] = np.full((1, COLUMNS // 32, 1), -0.25, np.float16).view(np.uint8)
    assert np.allclose(meant(store(raw.reshape(1, -1), form, COLUMNS)), -0.25, atol=0.25 / 14)
