"""Resampling of particles: counts add up, differ from their expectation by less than one, and meet it on average."""

from __future__ import annotations

import math
import random

import pytest

from edgeinfer.scheduling.several.resampling import effective_size, shares, systematic


def test_shares_sum_to_one_whatever_the_scale() -> None:
    assert shares([0.0, math.log(3.0)]) == pytest.approx([0.25, 0.75])
    assert shares([-1e6, -1e6 + math.log(3.0)]) == pytest.approx([0.25, 0.75])
    assert shares([-math.inf, 5.0]) == [0.0, 1.0]
    assert shares([-math.inf, -math.inf]) == [0.5, 0.5]


def test_the_effective_size_is_between_one_and_all() -> None:
    assert effective_size([0.25] * 4) == pytest.approx(4)
    assert effective_size([1.0, 0.0, 0.0]) == 1
    assert effective_size([0.5, 0.5, 0.0]) == pytest.approx(2)


@pytest.mark.parametrize("seed", range(40))
def test_each_particle_is_kept_as_often_as_its_share_says(seed: int) -> None:
    draw = random.Random(seed)
    n = draw.randint(1, 12)
    weights = shares([draw.choice([-math.inf, draw.gauss(0, 2)]) for _ in range(n)])
    offsets = [(k + 0.5) / 2000 for k in range(2000)]
    totals = [0] * n
    for offset in offsets:
        counts = systematic(weights, offset)
        assert sum(counts) == n
        for each, (count, weight) in enumerate(zip(counts, weights, strict=True)):
            assert math.floor(n * weight - 1e-9) <= count <= math.ceil(n * weight + 1e-9)
            assert count == 0 or weight > 0
            totals[each] += count
    assert [total / len(offsets) for total in totals] == pytest.approx([n * weight for weight in weights], abs=2e-3)


def test_counts_equal_those_of_points_laid_out_one_by_one() -> None:
    draw = random.Random(5)
    for _ in range(200):
        n, offset = draw.randint(1, 10), draw.random()
        weights = shares([draw.gauss(0, 1.5) for _ in range(n)])
        expected = [0] * n
        for point in range(n):
            at, reached = (point + offset) / n, 0.0
            for each, weight in enumerate(weights):
                reached += weight
                if at < reached or each == n - 1:
                    expected[each] += 1
                    break
        assert systematic(weights, offset) == expected
