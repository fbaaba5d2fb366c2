"""The kernels of mixtures of experts against the formulas: shares, and what is gathered for each expert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records, rounded
from edgeinfer.graph.ops.router import Router, Scoring
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, buffer, call, count_of, quantised, same_bits

Floats = NDArray[np.float32]


def drawn(*shape: int, seed: int = 0, spread: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def routed(
    library: KernelLibrary,
    scores: Floats,
    op: Router,
    workers: int = 1,
    bias: Floats | None = None,
    scales: Floats | None = None,
) -> Floats:
    """The kernel's shares; nothing is written beyond them."""
    biases, factors = (None if vector is None else buffer(vector[None]) for vector in (bias, scales))
    source, n_rows = buffer(scores), len(scores)
    out = aligned((n_rows + 1, source.shape[1]), np.float32)
    out[:] = UNTOUCHED
    call(
        library,
        catalogue.ROUTE,
        workers,
        scores=source,
        scores_stride=source.strides[0],
        out=out,
        out_stride=out.strides[0],
        count=count_of(n_rows),
        n_experts=op.experts,
        active=op.active,
        sigmoid=op.scoring == "sigmoid",
        mixer=op.scoring == "mixer",
        normalised=op.normalised,
        scale=op.scale,
        groups=op.groups,
        active_groups=op.active_groups,
        rated_by=op.rated_by,
        bias=0 if biases is None else biases,
        scales=0 if factors is None else factors,
    )
    assert np.all(out[n_rows] == UNTOUCHED)
    assert np.all(out[:, op.experts :] == UNTOUCHED)
    assert same_bits(source[:, : op.experts], scores)
    return out[:n_rows, : op.experts].copy()


@pytest.mark.parametrize(("experts", "active"), [(8, 2), (60, 4), (64, 8), (128, 8), (17, 17), (1, 1)])
@pytest.mark.parametrize("normalised", [False, True])
def test_shares_are_those_of_the_formula(library: KernelLibrary, experts: int, active: int, normalised: bool) -> None:
    for scoring in ("softmax", "sigmoid"):
        op = Router("scores", "shares", experts, active, scoring, normalised, 2.5)  # type: ignore[arg-type]
        scores = drawn(9, experts, seed=experts, spread=4.0)
        found = routed(library, scores, op)
        assert np.all((found != 0).sum(axis=1) == active)
        np.testing.assert_allclose(found, op.shares(scores), rtol=2e-6, atol=1e-12)
        assert same_bits(routed(library, scores, op, workers=3), found)
        assert same_bits(routed(library, scores[4:5], op), found[4:5])


@pytest.mark.parametrize(
    ("experts", "groups", "best", "active"), [(8, 4, 2, 3), (64, 8, 3, 8), (6, 6, 3, 3), (48, 3, 1, 5)]
)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rated_by", [1, 2])
def test_experts_of_the_best_groups_alone_are_chosen(
    library: KernelLibrary, experts: int, groups: int, best: int, active: int, scoring: str, biased: bool, rated_by: int
) -> None:
    op = Router("scores", "shares", experts, active, scoring, True, 1.5, None, groups, best, None, rated_by)  # type: ignore[arg-type]
    scores, bias = drawn(50, experts, seed=experts), drawn(experts, seed=2) if biased else None
    found = routed(library, scores, op, bias=bias)
    np.testing.assert_allclose(found, op.shares(scores, bias), rtol=2e-6, atol=1e-12)
    chosen = (found != 0).reshape(50, groups, -1)
    assert np.all(chosen.sum(axis=(1, 2)) == active)
    assert np.all(chosen.any(axis=2).sum(axis=1) <= best)
    if experts > 8:  # few are the best by themselves
        assert not same_bits(routed(library, scores, replace(op, groups=1, active_groups=1), bias=bias), found)
    assert same_bits(routed(library, scores, op, workers=3, bias=bias), found)


def test_shares_are_multiplied_by_the_factors_of_their_experts(library: KernelLibrary) -> None:
    op, scores, scales = Router("scores", "shares", 20, 4, "softmax", True), drawn(9, 20), drawn(20, seed=3)
    plain, found = routed(library, scores, op), routed(library, scores, op, workers=3, scales=scales)
    assert np.array_equal(found, plain * scales)


def test_a_group_is_as_good_as_its_two_best_or_its_best(library: KernelLibrary) -> None:
    scores = np.array([[4, -9, -9, 1, 1, -9, 2, 1, -9]], np.float32)
    op = Router("scores", "shares", 9, 2, "sigmoid", False, 1.0, None, 3, 1)
    for shares in (routed(library, scores, op), op.shares(scores)):
        assert np.flatnonzero(shares[0]).tolist() == [6, 7]
    op = replace(op, rated_by=1)
    for shares in (routed(library, scores, op), op.shares(scores)):
        assert np.flatnonzero(shares[0]).tolist() == [0, 1]


@pytest.mark.parametrize(("experts", "active"), [(16, 2), (60, 3), (5, 5)])
@pytest.mark.parametrize("spread", [0.01, 1.0, 300.0])
def test_shares_of_a_sparse_mixer(library: KernelLibrary, experts: int, active: int, spread: float) -> None:
    op = Router("scores", "shares", experts, active, "mixer", False, 1.5)
    scores = drawn(40, experts, seed=experts) * np.float32(spread) + np.float32(spread)
    found = routed(library, scores, op)
    np.testing.assert_allclose(found, op.shares(scores), rtol=2e-6, atol=1e-12)
    assert np.all((found != 0).sum(axis=1) == active)
    assert same_bits(routed(library, scores, op, workers=3), found)
    assert same_bits(routed(library, scores[4:5], op), found[4:5])


def test_a_mixer_shares_among_those_that_are_near(library: KernelLibrary) -> None:
    scores = np.array([[10, 9.9, 5, -4], [-1, -1.01, -2, -9], [3, 1, 3, 0]], np.float32)
    near = 1 / (1 + np.exp(np.float32(-0.1))), 1 / (1 + np.exp(np.float32(-0.01)))
    expected = np.array([[near[0], 1, 0, 0], [near[1], 1, 0, 0], [0.5, 0, 1, 0]], np.float32)
    op = Router("scores", "shares", 4, 2, "mixer")
    for shares in (routed(library, scores, op), op.shares(scores)):
        np.testing.assert_allclose(shares, expected, rtol=2e-6)


def test_of_equal_scores_the_lowest_number_is_taken(library: KernelLibrary) -> None:
    scores = np.array([[1, 3, 3, 0, 3, 2], [5, 5, 5, 5, 5, 5], [0, 0, 7, 0, 0, 0]], np.float32)
    op = Router("scores", "shares", 6, 2)
    for shares in (routed(library, scores, op), op.shares(scores)):
        assert [np.flatnonzero(row).tolist() for row in shares] == [[1, 2], [0, 1], [0, 2]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_give_no_finite_shares(library: KernelLibrary, bad: float) -> None:
    scores = drawn(3, 8)
    scores[1, 5] = bad
    kinds: list[tuple[Scoring, bool]] = [("softmax", False), ("softmax", True), ("mixer", False)]
    for kind in kinds:
        found = routed(library, scores, Router("scores", "shares", 8, 2, *kind))
        assert np.isnan(found[1]).sum() == 2
        assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize("n_tokens", [2, 7, 50])
def test_activations_are_gathered_in_the_tiles_of_each_expert(
    library: KernelLibrary, n_tokens: int, tiled: int, workers: int
) -> None:
    experts, active, width = 5, 2, 96
    shares = Router("", "", experts, active).shares(drawn(n_tokens, experts, seed=3))
    values, n_pairs = drawn(n_tokens, width, seed=4), n_tokens * active
    lists = aligned((workers, 8 + 24 * experts + 8 * n_pairs), np.uint8)
    gathered = aligned((n_pairs * 4 * rounded.RECORD_BYTES,), np.uint8)
    floats, source = aligned((n_pairs, width), np.float32), buffer(values)
    own = buffer(shares)
    call(
        library,
        catalogue.GROUP_BY_EXPERT,
        workers,
        shares=own,
        shares_stride=own.strides[0],
        count=count_of(n_tokens),
        n_experts=experts,
        most_pairs=n_pairs,
        lists=lists,
        lists_stride=lists.shape[1],
        records=quantised(library, values, tiled=tiled),
        n_padded=4,
        tiled=tiled,
        gathered=gathered,
        floats=source,
        float_stride=source.strides[0],
        gathered_floats=floats,
    )
    assert all(same_bits(each, lists[0]) for each in lists)
    start = 0
    for expert in range(experts):
        tokens = np.flatnonzero(shares[:, expert])
        stop = start + len(tokens)
        assert same_bits(floats[start:stop], values[tokens])
        records = gathered[start * 4 * rounded.RECORD_BYTES : stop * 4 * rounded.RECORD_BYTES]
        assert same_bits(records, quantised(library, values[tokens]))
        start = stop
    assert start == n_pairs


@pytest.mark.parametrize("workers", [1, 3])
def test_low_rows_take_the_scales_of_their_tokens(library: KernelLibrary, workers: int) -> None:
    experts, active, n_tokens, rank = 5, 2, 9, 64
    shares = Router("", "", experts, active).shares(drawn(n_tokens, experts, seed=3))
    own, n_pairs, scales = buffer(shares), n_tokens * active, drawn(n_tokens, seed=6)
    scales[4] = 0.0
    tokens = np.concatenate([np.flatnonzero(shares[:, expert]) for expert in range(experts)])
    values = drawn(n_pairs, rank, seed=5)
    values[tokens == 4] = np.inf
    lists = aligned((workers, 8 + 24 * experts + 8 * n_pairs), np.uint8)
    counted = {"n_experts": experts, "lists": lists, "lists_stride": lists.shape[1]}
    group = {"shares": own, "shares_stride": own.strides[0], "count": count_of(n_tokens), "most_pairs": n_pairs}
    call(library, catalogue.GROUP_BY_EXPERT, workers, **group, **counted)
    rows, out = buffer(values), aligned((n_pairs * 2 * rounded.RECORD_BYTES,), np.uint8)
    rounding = np.zeros(1, records.ROUND_ROWS)
    rounding["n_blocks"] = rounding["n_padded"] = rank // 32
    given = {"rows": rows, "stride": rows.strides[0], "scales": scales, "factor": 1.5, "rounding": rounding, "out": out}
    call(library, catalogue.READY_LOW_ROWS, workers, **given, **counted)
    factors = (scales * np.float32(1.5))[tokens, None]
    values[tokens == 4] = 0.0
    assert same_bits(rows, values * factors)
    stops = np.cumsum((shares != 0).sum(axis=0)) * 2 * rounded.RECORD_BYTES
    for start, stop, part in zip([0, *stops], stops, np.split(rows, stops // (2 * rounded.RECORD_BYTES)), strict=False):
        assert same_bits(out[start:stop], quantised(library, part))
