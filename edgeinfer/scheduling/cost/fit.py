"""Fits a device's rates, the few numbers that costs are computed from, to times of ops.

In: times of matmuls, attention and other ops in passes of several sizes. Out: `ProductRates`, `AttentionRates`, rates
of elements. Least squares of relative errors; measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.graph.op import AttentionHeads
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, ProductRates

LEAST_S = 1e-12


@dataclass(frozen=True, slots=True)
class ProductTime:
    """Seconds of all matmuls with matrices of this many columns in a pass, with `n_weights` in total."""

    columns: int
    n_weights: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Time of a pass of `n_tokens` after `n_cached` in `n_layers` layers: seconds of all of them together."""

    n_tokens: int
    n_cached: int
    n_layers: int
    products: tuple[ProductTime, ...]
    attention_s: float
    others_s: float


def usual(rounds: Sequence[Sequence[PassTimes]]) -> PassTimes:
    """Time of each kind of op from equal passes in several rounds: the median of the rounds' means.

    Within a round slow runs count as they do in use; disturbed rounds do not, as long as they are few.
    """
    first = rounds[0][0]
    products = tuple(
        ProductTime(
            each.columns,
            each.n_weights,
            statistics.median(statistics.fmean(run.products[place].seconds for run in runs) for runs in rounds),
        )
        for place, each in enumerate(first.products)
    )
    attention_s = statistics.median(statistics.fmean(run.attention_s for run in runs) for runs in rounds)
    others_s = statistics.median(statistics.fmean(run.others_s for run in runs) for runs in rounds)
    return PassTimes(first.n_tokens, first.n_cached, first.n_layers, products, attention_s, others_s)


def product_rates(
    bytes_per_weight: float, passes: Sequence[PassTimes], cached: Sequence[PassTimes], footprint: float
) -> ProductRates:
    """Rates of a format from passes over many layers, and over one layer that caches hold."""
    columns = sorted({each.columns for times in passes for each in times.products})
    narrow, wide = columns[0], columns[-1]
    return ProductRates(
        bytes_per_weight,
        _rate(passes, narrow),
        _rate(cached, None) if cached else None,
        footprint,
        narrow,
        _rate(passes, wide) if wide > narrow else None,
        wide,
    )


def _rate(passes: Sequence[PassTimes], columns: int | None) -> Curve:
    """Multiply-adds per second of matrices with this many columns (None: of all), by tokens."""
    rates = {}
    for times in sorted(passes, key=lambda times: times.n_tokens):
        found = [each for each in times.products if columns in (None, each.columns)]
        seconds = max(LEAST_S, sum(each.seconds for each in found))
        rates[times.n_tokens] = sum(each.n_weights for each in found) * times.n_tokens / seconds
    return Curve(tuple(rates), tuple(rates.values()))


def attention_rates(heads: AttentionHeads, passes: Sequence[PassTimes], *, whole: bool = False) -> AttentionRates:
    """Rates of attention from passes of each size at several depths; what does not grow with depth is kept separate.

    For the smallest passes that is the time of the call itself, for larger ones the remainder is the time of their
    rows.
    """
    by_size: dict[int, list[tuple[float, float]]] = {}
    for times in passes:
        work = heads.multiply_adds(times.n_tokens, times.n_cached)
        by_size.setdefault(times.n_tokens, []).append((work, times.attention_s / times.n_layers))
    slopes = {size: _slope(points) for size, points in sorted(by_size.items())}
    sizes = tuple(slopes)
    call_s = slopes[sizes[0]][1]
    rows = tuple(max(LEAST_S, (slopes[size][1] - call_s) / (size * heads.heads)) for size in sizes)
    return AttentionRates(
        heads.key_width,
        Curve(sizes, tuple(1 / slopes[size][0] for size in sizes)),
        call_s,
        Curve(sizes, rows),
        whole=whole,
    )


def median_attention(found: Sequence[AttentionRates]) -> AttentionRates:
    """The medians of several curves measured at the same numbers of tokens."""
    at = found[0].rate.at
    rows = [rates.row_s for rates in found if rates.row_s is not None]
    return AttentionRates(
        found[0].head_width,
        Curve(at, tuple(statistics.median(rates.rate(place) for rates in found) for place in at)),
        statistics.median(rates.call_s for rates in found),
        Curve(at, tuple(statistics.median(row_s(place) for row_s in rows) for place in at)) if rows else None,
    )


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds per multiply-add and for none, from the shallowest and the deepest pass; neither is below 0."""
    (low, low_s), (high, high_s) = min(points), max(points)
    slope = (high_s - low_s) / (high - low) if high > low else 0.0
    if slope <= 0 or low_s - slope * low < 0:
        return high_s / high, 0.0
    return slope, low_s - slope * low


def element_rates(n_elements: int, n_ops: int, passes: Sequence[PassTimes]) -> tuple[float, Curve]:
    """Seconds of an op with nothing to do, and elements per second by tokens for the remaining time.

    The smallest and the largest pass separate them: a pass of one token is mostly calls.
    """
    per_layer = {times.n_tokens: times.others_s / times.n_layers for times in sorted(passes, key=lambda t: t.n_tokens)}
    sizes = tuple(per_layer)
    low, high = sizes[0], sizes[-1]
    per_token = max(0.0, (per_layer[high] - per_layer[low]) / max(1, high - low))
    op_s = max(0.0, per_layer[low] - low * per_token) / n_ops
    rates = tuple(
        size * n_elements / max(LEAST_S, per_layer[size] - n_ops * op_s, size * per_token / 2) for size in sizes
    )
    return op_s, Curve(sizes, rates)
