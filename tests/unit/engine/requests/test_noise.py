"""The noise of draws: the published generator, exponential numbers, and independence across draws, tokens and seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeinfer.engine.requests.noise import AT_ONCE, MASK, STEP, Noise, stirred
from edgeinfer.engine.requests.sampling import Distribution

CELLS = 12
STRANGE = 1e-4
"""A right generator would be below this once in ten thousand tests. The seeds are fixed."""


def test_it_is_splitmix64() -> None:
    """Against the first numbers of the reference implementation (Vigna's splitmix64.c) from the state 1234567."""
    wanted = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [stirred(1234567 + STEP * place & MASK) for place in range(1, 6)] == wanted


def test_numbers_are_hashed_token_by_token() -> None:
    noise, tokens = Noise.of(9), np.array([0, 1, 5, 49151, 262143])
    for n in (0, 1, 1000):
        hashes = [stirred(noise.draw_key(n) + STEP * token & MASK) for token in tokens.tolist()]
        wanted = [-math.log(((each >> 12) + 0.5) / 2**52) for each in hashes]
        assert noise.exponentials(n, tokens) == pytest.approx(wanted, rel=1e-12)


def test_noise_of_a_token_is_the_same_among_any_others() -> None:
    noise, every = Noise.of(3), np.arange(3 * AT_ONCE + 5)
    whole = noise.exponentials(4, every)
    some = every[[0, 7, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE + 1, 3 * AT_ONCE + 4]]
    assert noise.exponentials(4, some).tolist() == whole[some].tolist()
    assert whole.min() >= 2.0**-53
    assert whole.max() < 37


def test_every_seed_has_noise_of_its_own() -> None:
    seeds = [*range(20_000), *(1 << bits for bits in range(16, 200)), *((1 << 64) * each for each in range(2, 50))]
    assert len({Noise.of(seed).key for seed in seeds}) == len(set(seeds))
    assert Noise.of(7) == Noise.of(np.int64(7))  # type: ignore[arg-type]


def shares_by(kind: str) -> np.ndarray:
    """Noise as shares of [0, 1): float64[400, 400], whose neighbours in both directions differ in one of three."""
    numbers, tokens = range(400), np.arange(400)
    if kind == "draws and tokens":
        rows = [Noise.of(1).exponentials(n, tokens) for n in numbers]
    elif kind == "seeds and tokens":
        rows = [Noise.of(seed).exponentials(3, tokens) for seed in numbers]
    else:
        token = np.array([1234])
        rows = [np.concatenate([Noise.of(seed).exponentials(n, token) for n in range(400)]) for seed in range(400)]
    return np.exp(-np.array(rows))


def chance_of(counts: np.ndarray, expected: np.ndarray, freedom: int) -> float:
    """Pearson's chi-square test: how likely counts as strange as these are."""
    found = float(((counts - expected) ** 2 / expected).sum())
    try:
        from scipy.stats import chi2
    except ImportError:  # the cube root is nearly normal (Wilson and Hilferty, 1931)
        spread = 2 / (9 * freedom)
        return math.erfc(((found / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(2 * spread)) / 2
    return float(chi2.sf(found, freedom))


def chance_of_pairs(first: np.ndarray, second: np.ndarray, n_cells: int) -> float:
    """How likely a table of pairs as strange as this is, if the second of each does not depend on the first."""
    table = np.bincount((first * n_cells + second).ravel(), minlength=n_cells**2).reshape(n_cells, n_cells)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    return chance_of(table, expected, (n_cells - 1) ** 2)


@pytest.mark.parametrize("kind", ["draws and tokens", "seeds and tokens", "seeds and draws"])
def test_noise_is_exponential_and_independent_of_its_neighbours(kind: str) -> None:
    shares = shares_by(kind)
    cells = (shares * CELLS).astype(int)
    for lag in (1, 2, 3, 16, 64, 256):
        assert chance_of_pairs(cells[:-lag], cells[lag:], CELLS) > STRANGE, lag
        assert chance_of_pairs(cells[:, :-lag], cells[:, lag:], CELLS) > STRANGE, lag
    for each in (shares, shares.max(axis=0) ** 400, shares.max(axis=1) ** 400, shares * 2**30 % 1):
        counts = np.bincount((each * 40).astype(int).ravel(), minlength=40)  # the highest ones decide draws
        assert chance_of(counts, np.full(40, each.size / 40), 39) > STRANGE


def test_noise_is_uniform_by_kolmogorov_and_smirnov() -> None:
    stats = pytest.importorskip("scipy.stats")
    for kind in ("draws and tokens", "seeds and tokens", "seeds and draws"):
        assert stats.kstest(shares_by(kind).ravel(), "uniform").pvalue > STRANGE


def test_drawn_tokens_are_independent_of_those_before_and_of_other_seeds() -> None:
    given = Distribution(np.array([3, 4, 90, 700]), np.array([4.0, 3.0, 2.0, 1.0]))
    drawn = np.searchsorted(given.tokens, [[given.draw(Noise.of(seed), n) for n in range(80)] for seed in range(80)])
    for first, second in ((drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:]), (drawn[:-1, :-1], drawn[1:, 1:])):
        assert chance_of_pairs(first, second, 4) > STRANGE
    counts = np.bincount(drawn.ravel(), minlength=4)
    assert chance_of(counts, given.probabilities * drawn.size, 3) > STRANGE


def test_the_judge_of_independence_sees_noise_that_repeats() -> None:
    """With one number in forty taken from the draw before, it says so."""
    shares = shares_by("draws and tokens")
    shares[1::2, ::20] = shares[:-1:2, ::20]
    cells = (shares * CELLS).astype(int)
    assert chance_of_pairs(cells[:-1], cells[1:], CELLS) < STRANGE


def test_a_token_wins_by_its_own_noise_as_often_as_the_formula_says() -> None:
    """Over draws in which its noise is alike, exp(-E (1 - p) / p), whatever tokens share the rest."""
    tokens, n_draws = np.arange(7), 30_000
    for weights in ([0.5, 0.5, 0, 0, 0, 0, 0], [0.2, 0.5, 0.1, 0.05, 0.05, 0.05, 0.05], [0.05, 0.9, 0.05, 0, 0, 0, 0]):
        p = np.array(weights)
        noise = np.array([Noise.of(1).exponentials(n, tokens) for n in range(n_draws)])
        with np.errstate(divide="ignore"):
            won = (noise / p).argmin(axis=1) == 0
        wanted = np.exp(-noise[:, 0] * (1 - p[0]) / p[0])
        edges = np.quantile(wanted, np.linspace(0, 1, 11))
        tenth = np.clip(np.searchsorted(edges, wanted, side="right") - 1, 0, 9)
        for part in range(10):
            chosen = tenth == part
            spread = math.sqrt(wanted[chosen].mean() * (1 - wanted[chosen].mean()) / chosen.sum()) + 1e-4
            assert abs(won[chosen].mean() - wanted[chosen].mean()) < 4 * spread
