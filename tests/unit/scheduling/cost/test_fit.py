"""Rates come back from times that were computed from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.cost.fit import (
    PassTimes,
    ProductTime,
    attention_rates,
    element_rates,
    median_attention,
    product_rates,
    usual,
)

HEADS = AttentionHeads(12, 4, 64, 64)


def pass_times(n_tokens: int, n_cached: int = 0, **changes: float) -> PassTimes:
    times = {"narrow": 1.0, "wide": 2.0, "attention_s": 0.5, "others_s": 0.25} | changes
    products = (ProductTime(768, 1000, times["narrow"]), ProductTime(4096, 500, times["wide"]))
    return PassTimes(n_tokens, n_cached, 2, products, times["attention_s"], times["others_s"])


def test_products_of_narrow_and_of_wide_matrices_have_rates_of_their_own():
    passes = [pass_times(1, narrow=1e-6, wide=1e-6), pass_times(8, narrow=2e-6, wide=4e-6)]
    rates = product_rates(0.5, passes, [pass_times(1, narrow=5e-7, wide=5e-7)], 1e8)
    assert rates.rate(1) == pytest.approx(1000 / 1e-6)
    assert rates.rate(8) == pytest.approx(8 * 1000 / 2e-6)
    assert rates.wide is not None
    assert rates.wide(8) == pytest.approx(8 * 500 / 4e-6)
    assert rates.cached is not None
    assert rates.cached(1) == pytest.approx(1500 / 1e-6)
    assert (rates.columns, rates.wide_columns, rates.footprint) == (768, 4096, 1e8)
    halfway = (768 + 4096) // 2
    assert rates.weight_s(8, halfway) == pytest.approx((rates.weight_s(8, 768) + rates.weight_s(8, 4096)) / 2)
    assert rates.weight_s(8, 1 << 20) == rates.weight_s(8, 4096)


def test_slow_runs_count_within_a_round_and_slow_rounds_do_not():
    rounds = [
        [pass_times(1, narrow=1.0, attention_s=0.1), pass_times(1, narrow=2.0, attention_s=0.3)],
        [pass_times(1, narrow=9.0, wide=9.0, others_s=9.0), pass_times(1, narrow=9.0, attention_s=9.0)],
        [pass_times(1, narrow=1.6), pass_times(1, narrow=1.6)],
    ]
    found = usual(rounds)
    assert [each.seconds for each in found.products] == [1.6, 2.0]
    assert (found.attention_s, found.others_s) == (0.5, 0.25)


@given(rate=st.floats(1e9, 1e12), call_s=st.floats(0, 1e-4), depth=st.integers(100, 8000))
def test_attention_is_told_apart_from_its_calls_by_two_depths(rate: float, call_s: float, depth: int) -> None:
    passes = [
        pass_times(1, n_cached, attention_s=2 * (call_s + HEADS.multiply_adds(1, n_cached) / rate))
        for n_cached in (0, depth)
    ]
    found = attention_rates(HEADS, passes)
    assert found.rate(1) == pytest.approx(rate, rel=1e-6)
    assert found.call_s == pytest.approx(call_s, abs=1e-9)


@given(row_s=st.floats(1e-9, 1e-6), call_s=st.floats(0, 1e-5))
def test_what_rows_take_is_told_apart_from_calls_by_the_size_of_a_pass(row_s: float, call_s: float) -> None:
    rate = 5e10
    passes = [
        pass_times(
            n_tokens,
            n_cached,
            attention_s=2
            * (call_s + (n_tokens > 1) * n_tokens * 12 * row_s + HEADS.multiply_adds(n_tokens, n_cached) / rate),
        )
        for n_tokens in (1, 8, 256)
        for n_cached in (0, 1792)
    ]
    found = attention_rates(HEADS, passes)
    assert found.row_s is not None
    assert [found.row_s(n) for n in (8, 256)] == pytest.approx([row_s] * 2, rel=0.02, abs=1e-10)
    again = median_attention([found, found, found])
    assert again == found


def test_attention_that_does_not_grow_is_all_work():
    passes = [pass_times(1, n_cached, attention_s=1e-3) for n_cached in (0, 1000)]
    found = attention_rates(HEADS, passes)
    assert found.call_s == 0
    assert found.rate(1) == pytest.approx(HEADS.multiply_adds(1, 1000) / 0.5e-3)


def test_small_passes_tell_what_calls_take_and_large_ones_what_elements_take():
    op_s, rate, n_ops, n_elements = 2e-6, 4e9, 10, 5000
    passes = [pass_times(n, others_s=2 * (n_ops * op_s + n * n_elements / rate)) for n in (1, 8, 256)]
    found_op_s, found = element_rates(n_elements, n_ops, passes)
    assert found_op_s == pytest.approx(op_s)
    assert [found(n) for n in (1, 8, 256)] == pytest.approx([rate] * 3)


@given(st.lists(st.floats(1e-9, 1), min_size=3, max_size=3))
def test_any_times_give_rates_above_zero(seconds: list[float]) -> None:
    passes = [pass_times(n, others_s=s, attention_s=s) for n, s in zip((1, 8, 256), seconds, strict=True)]
    op_s, curve = element_rates(5000, 10, passes)
    assert op_s >= 0
    assert min(curve.values) > 0
    assert min(attention_rates(HEADS, passes).rate.values) > 0
