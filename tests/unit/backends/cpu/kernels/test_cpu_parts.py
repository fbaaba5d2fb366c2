"""Parts of rows mixed, added to and gated, magnitudes matched, highest values kept: against the ops' formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.graph.activations import softplus
from edgeinfer.graph.ops.keep_highest import keep_highest
from edgeinfer.jit.library import KernelLibrary
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, buffer, call, count_of, same_bits

Floats = NDArray[np.float32]
ROWS = 5


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def by_tokens(run: Callable[[int, int], Floats]) -> Floats:
    """The result of one worker, which more of them, and fewer rows, must not change: `run` is given both."""
    result = run(1, ROWS)
    assert all(same_bits(run(workers, ROWS), result) for workers in (2, 3, 7))
    assert same_bits(run(2, 1), result[:1])
    return result


@pytest.mark.parametrize(("parts", "width"), [(4, 32), (2, 16), (5, 48)])
def test_mixed_parts(library: KernelLibrary, parts: int, width: int) -> None:
    rows, factors = drawn(ROWS, parts * width, seed=1), drawn(ROWS, parts * parts, seed=2)

    def run(workers: int, n_rows: int) -> Floats:
        source, given = buffer(rows), buffer(factors)
        out = buffer(np.full((ROWS + 1, parts * width), UNTOUCHED, np.float32))
        fields = {"source": source, "factors": given, "out": out}
        strides = {f"{name}_stride": values.strides[0] for name, values in fields.items()}
        sizes = {"parts": parts, "part_bytes": 4 * width, "count": count_of(n_rows)}
        call(library, catalogue.MIX_PARTS, workers, **fields, **strides, **sizes)
        assert (out[n_rows:, : parts * width] == UNTOUCHED).all()
        return out[:n_rows, : parts * width].copy()

    of_parts = rows.reshape(ROWS, parts, width)
    expected = of_parts + np.einsum("tij,tjc->tic", factors.reshape(ROWS, parts, parts), of_parts)
    np.testing.assert_allclose(by_tokens(run).reshape(of_parts.shape), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("has_factors", [True, False])
def test_a_row_added_to_parts(library: KernelLibrary, first: int, has_factors: bool) -> None:
    parts, width = 4, 48
    before, row, factors = drawn(ROWS, parts * width, seed=1), drawn(ROWS, width, seed=2), drawn(ROWS, parts, seed=3)

    def run(workers: int, n_rows: int) -> Floats:
        out, source, given = buffer(before), buffer(row), buffer(factors)
        strides = {"out_stride": out.strides[0], "source_stride": source.strides[0]}
        own = {"factors": given, "factors_stride": given.strides[0]} if has_factors else {}
        sizes = {"parts": parts, "first": first, "part_bytes": 4 * width, "count": count_of(n_rows)}
        call(library, catalogue.ADD_TO_PARTS, workers, source=source, out=out, **strides, **own, **sizes)
        assert same_bits(out[n_rows:, : parts * width], before[n_rows:])
        return out[:n_rows, : parts * width].copy()

    shares = 1.0 + factors[:, :, None] if has_factors else np.ones((ROWS, parts, 1), np.float32)
    expected = before.reshape(ROWS, parts, width).copy()
    expected[:, first:] += shares[:, first:] * row[:, None]
    np.testing.assert_allclose(by_tokens(run).reshape(expected.shape), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 3, 20])
def test_gated_heads(library: KernelLibrary, heads: int) -> None:
    before, gates = drawn(ROWS, heads * 48, seed=1), drawn(ROWS, heads, seed=2, spread=20.0)

    def run(workers: int, n_rows: int) -> Floats:
        out, given = buffer(before), buffer(gates)
        strides = {"out_stride": out.strides[0], "factors_stride": given.strides[0]}
        sizes = {"parts": heads, "part_bytes": 4 * 48, "count": count_of(n_rows)}
        call(library, catalogue.GATED_HEADS, workers, factors=given, out=out, **strides, **sizes)
        assert same_bits(out[n_rows:, : heads * 48], before[n_rows:])
        return out[:n_rows, : heads * 48].copy()

    expected = before.reshape(ROWS, heads, 48) * softplus(gates)[:, :, None]
    np.testing.assert_allclose(by_tokens(run).reshape(expected.shape), expected, rtol=3e-6, atol=1e-12)


@pytest.mark.parametrize("width", [16, 40, 576, 3])
@pytest.mark.parametrize("spread", [1.0, 300.0, 1e-6, 0.0])
def test_matched_magnitudes(library: KernelLibrary, width: int, spread: float) -> None:
    values, target, least = drawn(ROWS, width, seed=1, spread=spread), drawn(ROWS, width, seed=2, spread=4.0), 1e-5

    def run(workers: int, n_rows: int) -> Floats:
        value, aim = buffer(values), buffer(target)
        sizes = {"n_vectors": -(-width // 16), "count": count_of(n_rows), "width": width, "least": least}
        strides = {"value_stride": value.strides[0], "target_stride": aim.strides[0]}
        call(library, catalogue.MATCH_MAGNITUDE, workers, value=value, target=aim, **strides, **sizes)
        assert same_bits(value[n_rows:, :width], values[n_rows:])
        assert not value[:, width:].any()
        return value[:n_rows, :width].copy()

    own = np.maximum((values.astype(np.float64) ** 2).mean(axis=1, keepdims=True), least)
    expected = values * np.sqrt((target.astype(np.float64) ** 2).mean(axis=1, keepdims=True) / own)
    np.testing.assert_allclose(by_tokens(run), expected, rtol=2e-6)


@pytest.mark.parametrize("width", [16, 40, 576, 3, 1])
@pytest.mark.parametrize("deviations", [1.6448533535003662, 0.0, -0.5])
@pytest.mark.parametrize("shift", [0.0, -8.0])
def test_highest_values(library: KernelLibrary, width: int, deviations: float, shift: float) -> None:
    values = drawn(ROWS, width, seed=1) + np.float32(shift)

    def run(workers: int, n_rows: int) -> Floats:
        value, whole = buffer(values), -(-width // 16) * 16
        sizes = {"n_vectors": whole // 16, "last": width - whole + 16, "count": count_of(n_rows), "width": width}
        strides = {"stride": value.strides[0], "deviations": deviations}
        call(library, catalogue.KEEP_HIGHEST, workers, value=value, **strides, **sizes)
        assert same_bits(value[n_rows:, :width], values[n_rows:])
        assert not value[:, width:].any()
        return value[:n_rows, :width].copy()

    found, expected = by_tokens(run), keep_highest(values, deviations)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=4e-6)
    assert np.count_nonzero(found) == pytest.approx(np.count_nonzero(expected), abs=1)
