"""Norms, activations, addition, caps and output rows against the reference device's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES, PEAK_LOGITS
from edgeinfer.backends.cpu import catalogue
from edgeinfer.graph.activations import ACTIVATIONS
from edgeinfer.graph.ops.rms_norm import rms_norm
from edgeinfer.graph.ops.xielu import XIELU, xielu
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, buffer, call, count_of, same_bits

Floats = NDArray[np.float32]


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def norm(library: KernelLibrary, values: Floats, weight: Floats, groups: int, epsilon: float, workers: int) -> Floats:
    """The kernel on rows of padded groups; gives back the rows without their padding."""
    n_rows, width = len(values), len(weight)
    group = -(-width // 16) * 16
    source = aligned((n_rows, groups, group), np.float32)
    source[..., :width] = values.reshape(n_rows, groups, width)
    out = aligned((n_rows + 1, groups, group), np.float32)
    out[:] = UNTOUCHED
    call(
        library,
        catalogue.RMS_NORM,
        workers,
        source=source,
        source_stride=source.strides[0],
        out=out,
        out_stride=out.strides[0],
        weight=buffer(weight[None], group)[0],
        groups=groups,
        group_stride=source.strides[1],
        n_vectors=group // 16,
        count=count_of(n_rows),
        width=width,
        epsilon=epsilon,
    )
    assert np.all(out[n_rows] == UNTOUCHED)
    assert not out[:n_rows, :, width:].any()
    return out[:n_rows, :, :width].reshape(values.shape).copy()


@pytest.mark.parametrize(("width", "groups"), [(16, 1), (40, 1), (576, 1), (64, 3), (24, 5), (17, 2), (3, 1)])
def test_rms_norm(library: KernelLibrary, width: int, groups: int) -> None:
    weight = drawn(width, seed=1)
    for n_rows, spread, epsilon in ((1, 1.0, 1e-5), (7, 300.0, 1e-6), (2, 1e-4, 1e-5), (2, 0.0, 1e-5)):
        values = drawn(n_rows, groups * width, seed=n_rows, spread=spread)
        expected = rms_norm(values, weight, groups, epsilon)
        actual = norm(library, values, weight, groups, epsilon, workers=1)
        assert np.allclose(actual, expected, rtol=2e-6, atol=1e-12)
        assert same_bits(norm(library, values, weight, groups, epsilon, workers=3), actual)
        assert same_bits(norm(library, values[-1:], weight, groups, epsilon, workers=1), actual[-1:])


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("width", [16, 40, 576, 17, 3, 1])
@pytest.mark.parametrize(("spread", "shift"), [(1.0, 0.0), (300.0, -50.0), (1e-3, 8.0), (0.0, 2.0)])
def test_layer_norm(library: KernelLibrary, width: int, groups: int, spread: float, shift: float) -> None:
    weight, bias = drawn(groups, width, seed=1), drawn(groups, width, seed=2)
    values = drawn(7 * groups, width, seed=3, spread=spread) + np.float32(shift)
    length, results = -(-width // 16) * 16, []
    for workers, rows in ((1, values), (3, values), (2, values[-groups:])):
        source, out = buffer(rows, length), buffer(np.full((len(rows) + 1, width), UNTOUCHED, np.float32), length)
        call(
            library,
            catalogue.LAYER_NORM,
            workers,
            source=source,
            source_stride=groups * source.strides[0],
            out=out,
            out_stride=groups * out.strides[0],
            weight=buffer(weight, length),
            bias=buffer(bias, length),
            n_vectors=length // 16,
            last=width - length + 16,
            parts=1,
            period=length // 16,
            count=count_of(len(rows) // groups),
            width=width,
            epsilon=1e-5,
            groups=groups,
            group_stride=length * 4,
        )
        assert np.all(out[len(rows), :width] == UNTOUCHED)
        assert not out[: len(rows), width:].any()
        results.append(out[: len(rows), :width].copy())
    weights, biases = np.tile(weight, (7, 1)), np.tile(bias, (7, 1))
    exact = values.astype(np.float64) - values.astype(np.float64).mean(axis=1, keepdims=True)
    expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weights + biases
    lost = 4e-7 * np.abs(values).max() / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5)  # by the mean
    assert np.all(np.abs(results[0] - expected) <= 3e-6 * np.abs(expected) + lost * np.abs(weights) + 1e-6)
    assert same_bits(results[1], results[0])
    assert same_bits(results[2], results[0][-groups:])


def columns(
    library: KernelLibrary,
    kernel: Kernel,
    workers: int = 1,
    cap: float = 0.0,
    least: float = 0.0,
    most: float = 0.0,
    **buffers: Floats,
) -> None:
    """Run a kernel that shares columns out on buffers (source, other, out), whose last row it must not touch.

    All are of one size, except that `other` may be wider.
    """
    first = next(iter(buffers.values()))
    n_rows = len(first) - 1
    kept = [values[n_rows].copy() for values in buffers.values()]
    sizes = {"stride": first.strides[0], "n_vectors": first.shape[1] // 16, "count": count_of(n_rows), "cap": cap}
    sizes |= {"least": least, "most": most}
    sizes["other_stride"] = buffers.get("other", first).strides[0]
    call(library, kernel, workers, **sizes, **buffers)
    assert all(same_bits(values[n_rows], row) for values, row in zip(buffers.values(), kept, strict=True))


@pytest.mark.parametrize("width", [16, 40, 3])
def test_xielu(library: KernelLibrary, width: int) -> None:
    op = XIELU("up", "hidden", width, rise=1.3, fall=0.9, slope=0.5, edge=-1e-6)
    values, length, results = drawn(5, width, seed=4, spread=5.0), -(-width // 32) * 32, []
    for workers in (1, 3):
        source, out = buffer(values, length), buffer(np.full((5, width), UNTOUCHED, np.float32), length)
        sizes = {"stride": source.strides[0], "n_vectors": length // 16, "count": count_of(5)}
        shape = {field: getattr(op, field) for field in ("rise", "fall", "slope", "edge")}
        call(library, catalogue.XIELU, workers, source=source, other=source, out=out, **sizes, **shape)
        assert not out[:, width:].any()
        results.append(out[:, :width].copy())
    np.testing.assert_allclose(results[0], xielu(values, op), rtol=2e-6, atol=3e-7)
    assert same_bits(results[1], results[0])


def special(n_rows: int, width: int, seed: int) -> Floats:
    """Ordinary values, with extremes among them."""
    values = drawn(n_rows, width, seed=seed, spread=4.0)
    values[0, :12] = [0.0, -0.0, 1e-30, -1e-8, 20.0, -20.0, 88.0, -88.0, 1e4, -1e4, -104.0, 0.5]
    return values


@pytest.mark.parametrize("width", [32, 64, 160])
@pytest.mark.parametrize("activation", sorted(catalogue.GATED))
def test_gated_activations(library: KernelLibrary, activation: str, width: int) -> None:
    gate, up = special(6, width, seed=1), drawn(6, width, seed=2)
    results = []
    for workers in (1, 2, 3, 5):
        out = buffer(np.zeros_like(gate), width)
        columns(
            library, catalogue.GATED[activation], workers, source=buffer(gate, width), other=buffer(up, width), out=out
        )
        results.append(out[:5].copy())
    expected = (ACTIVATIONS[activation](gate) * up)[:5]
    cancelled = 5e-7 * np.abs(gate * up)[:5]  # 1 + tanh of a negative number
    assert np.all(np.abs(results[0] - expected) <= 3e-6 * np.abs(expected) + cancelled)
    assert all(same_bits(result, results[0]) for result in results)


def test_gates_of_some_columns_of_a_wider_buffer(library: KernelLibrary) -> None:
    gate, wide = special(6, 64, seed=1), drawn(6, 224, seed=2)
    apart, within = buffer(np.zeros_like(gate)), buffer(np.zeros_like(gate))
    kernel = catalogue.GATED["gelu_tanh"]
    columns(library, kernel, 2, source=buffer(gate), other=buffer(wide[:, 96:160].copy()), out=apart)
    columns(library, kernel, 2, source=buffer(gate), other=buffer(wide)[:, 96:], out=within)
    assert same_bits(within, apart)
    assert within[:5].any()


@pytest.mark.parametrize("activation", sorted(catalogue.ACT))
def test_activations(library: KernelLibrary, activation: str) -> None:
    source, results = special(6, 96, seed=1), []
    for workers in (1, 3):
        out = buffer(np.zeros_like(source))
        columns(library, catalogue.ACT[activation], workers, source=buffer(source), other=buffer(source), out=out)
        results.append(out[:5].copy())
    expected = ACTIVATIONS[activation](source)[:5]
    assert np.all(np.abs(results[0] - expected) <= 3e-6 * np.abs(expected) + 5e-7 * np.abs(source[:5]))
    assert same_bits(results[0], results[1])
    if activation.startswith("relu"):
        assert same_bits(results[0], expected)
        assert not np.signbit(results[0]).any()


def test_added_rows(library: KernelLibrary) -> None:
    source, before = drawn(4, 96, seed=1), drawn(4, 96, seed=2)
    for workers in (1, 2, 4):
        out = buffer(before)
        columns(library, catalogue.ADD, workers, source=buffer(source), out=out)
        assert same_bits(out[:3], (before + source)[:3])


def test_rows_added_by_factors_of_their_own_leave_those_of_factor_zero_alone(library: KernelLibrary) -> None:
    source, before = drawn(5, 96, seed=1), drawn(5, 96, seed=2)
    scales = np.array([0.5, 0.0, -3.0, -0.0, 1.0], np.float32)
    for row in (1, 3):
        source[row, :4], before[row, 4:8] = [np.inf, -np.inf, np.nan, 1.0], -0.0
    added = (0, 2)
    for workers in (1, 2, 4):
        out = buffer(before)
        sizes = {"stride": out.strides[0], "n_vectors": 6, "count": count_of(5), "cap": 0.25}
        call(library, catalogue.ADD_SCALED, workers, source=buffer(source), other=scales, out=out, **sizes)
        assert same_bits(out[[1, 3]], before[[1, 3]])
        for row in added:
            assert np.allclose(out[row], before[row] + scales[row] * 0.25 * source[row], rtol=1e-6, atol=1e-6)


def test_rows_times_a_vector(library: KernelLibrary) -> None:
    vector, before = drawn(1, 96, seed=1), drawn(4, 96, seed=2)
    for workers in (1, 2, 4):
        out = buffer(before)
        columns(library, catalogue.MUL_VECTOR, workers, out=out, source=buffer(vector.repeat(4, axis=0)))
        assert same_bits(out[:3], (before * vector)[:3])


@pytest.mark.parametrize("factor", [0.0625, -1.7])
def test_scaled_rows(library: KernelLibrary, factor: float) -> None:
    values = drawn(4, 96, seed=4)
    for workers in (1, 2, 4):
        out = buffer(values)
        columns(library, catalogue.SCALE, workers, factor, source=out, out=out)
        assert same_bits(out[:3], (values * np.float32(factor))[:3])


def test_cleared_rows(library: KernelLibrary) -> None:
    """Zeros without a sign, also where there was no number."""
    values = special(4, 96, seed=5)
    values[1, :3] = [np.nan, np.inf, -np.inf]
    for workers in (1, 2, 4):
        out = buffer(values)
        columns(library, catalogue.ZERO, workers, out=out)
        assert same_bits(out[:3], np.zeros((3, 96), np.float32))


@pytest.mark.parametrize("cap", [2.0, 30.0, 50.0])
def test_soft_cap(library: KernelLibrary, cap: float) -> None:
    values = special(4, 64, seed=3) * np.float32(10)
    for workers in (1, 3):
        out = buffer(values)
        columns(library, catalogue.SOFT_CAP, workers, cap, source=out, out=out)
        expected = np.float32(cap) * np.tanh(values / np.float32(cap))
        assert np.allclose(out[:3], expected[:3], rtol=1e-6, atol=2e-7 * cap)


@pytest.mark.parametrize(("least", "most"), [(-0.5, 0.5), (-8.0, 8.0), (-0.25, 3.0), (-np.inf, 1.0), (-1.0, np.inf)])
def test_clipped_values(library: KernelLibrary, least: float, most: float) -> None:
    values = special(4, 64, seed=3)
    values[1, :3] = [np.nan, np.inf, -np.inf]
    for workers in (1, 3):
        out = buffer(values)
        columns(library, catalogue.CLIP, workers, source=out, out=out, least=least, most=most)
        assert np.array_equal(out[:3], np.clip(values, least, most)[:3], equal_nan=True)


@pytest.mark.parametrize("width", [8, 16, 40, 496, 512, 1000, 1536])
def test_peaks(library: KernelLibrary, width: int) -> None:
    check_peaks(library, drawn(4, width + -width % 32, seed=5) - np.float32(20), width)


@pytest.mark.parametrize("width", [16, 512, 1000])
def test_peaks_of_what_is_no_number(library: KernelLibrary, width: int) -> None:
    logits = drawn(4, width + -width % 32, seed=6)
    logits[1, 3], logits[2, 5], logits[2, 7] = np.nan, np.inf, -np.inf
    check_peaks(library, logits, width)


def check_peaks(library: KernelLibrary, logits: Floats, width: int) -> None:
    """The kernel finds what NumPy finds in the first `width` columns of the first three rows."""
    n_blocks = -(-width // PEAK_BLOCK)
    logits[:, width:] = 1e6  # what lies beyond is no logit
    spread = np.full((4, n_blocks * PEAK_BLOCK), -3e38, np.float32)
    spread[:, :width] = np.where(np.isfinite(logits[:, :width]), logits[:, :width], np.nan)
    wanted = spread.reshape(4, n_blocks, PEAK_LOGITS, PEAK_LANES).max(2).reshape(4, -1)
    results = []
    for workers in (1, 2, 3):
        source, n_peaks = buffer(logits), n_blocks * PEAK_LANES
        out = buffer(np.full((4, n_peaks), UNTOUCHED, np.float32), n_peaks)
        strides = {"stride": source.strides[0], "out_stride": out.strides[0]}
        sizes = {"width": width, "count": count_of(3), **strides}
        call(library, catalogue.FIND_PEAKS, workers, source=source, out=out, **sizes)
        assert np.array_equal(out[:3], wanted[:3], equal_nan=True)
        assert (out[3] == UNTOUCHED).all()
        results.append(out)
    assert all(same_bits(result, results[0]) for result in results)


def test_output_rows(library: KernelLibrary) -> None:
    source = drawn(9, 48, seed=4)
    outputs = np.array([0, 3, 3, 8, 1], np.int32)
    where = np.array([outputs.ctypes.data], np.int64)
    for workers in (1, 2, 3):
        out = buffer(np.full((6, 48), UNTOUCHED, np.float32), 48)
        call(
            library,
            catalogue.TAKE_OUTPUTS,
            workers,
            source=source,
            out=out,
            stride=source.strides[0],
            n_vectors=3,
            outputs=where,
            count=count_of(len(outputs)),
        )
        assert same_bits(out[:5], source[outputs])
        assert np.all(out[5] == UNTOUCHED)
