"""Activations cut at a threshold: as their NumPy twin says, and counted."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.graph import activations
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.variants import SMOOTH
from tests.unit.backends.cpu.kernel_calls import buffer, call, count_of, same_bits

ROWS, WIDTH = 6, 90
THRESHOLDS = (0.05, 0.2, 3.0)


def drawn(seed: int) -> np.ndarray:
    """Ordinary values, with extremes among them."""
    values = 2 * np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(np.float32)
    values[0, :8] = [0.0, -0.0, 1e-30, 20.0, -20.0, np.nan, 1e4, -1e4]
    return values


@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("is_gated", [True, False])
def test_small_activations_are_zero(library: KernelLibrary, activation: str, threshold: float, is_gated: bool) -> None:
    gate, up = buffer(drawn(1)), buffer(np.nan_to_num(drawn(2)))
    plain = np.zeros_like(gate)
    sizes = {"stride": gate.strides[0], "n_vectors": gate.shape[1] // 16, "count": count_of(ROWS - 1)}
    call(library, catalogue.ACT[activation], 1, source=gate, other=gate, out=plain, **sizes)
    cut = activations.cut(plain, threshold)  # of our own activations, so that bits can be compared
    with np.errstate(invalid="ignore"):
        expected = cut * up if is_gated else cut
    kernel = (catalogue.CUT_GATED if is_gated else catalogue.CUT_ACT)[activation]
    for workers in (1, 2, 3, 5):
        out, kept = np.full_like(gate, 7.0), np.zeros((workers, records.COUNT_LINE // 8), np.int64)
        fields = {"source": gate, "other": up if is_gated else gate, "out": out, "kept": kept, "threshold": threshold}
        for _ in range(2):
            call(library, kernel, workers, **fields, **sizes)
        assert same_bits(out[: ROWS - 1], expected[: ROWS - 1])
        assert np.all(out[ROWS - 1] == 7.0)
        assert kept[:, 0].sum() == 2 * np.count_nonzero(cut[: ROWS - 1])
        assert not kept[:, 1:].any()
    assert 0 < np.count_nonzero(cut[: ROWS - 1]) < (ROWS - 1) * WIDTH


def test_a_value_at_the_threshold_is_kept() -> None:
    values = np.array([0.25, -0.25, np.nextafter(np.float32(0.25), np.float32(0)), np.nan], np.float32)
    assert activations.cut(values, 0.25).tolist() == [0.25, -0.25, 0.0, 0.0]
    assert activations.cut(values, 0.0) is values
