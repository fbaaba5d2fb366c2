"""The sampler against an obvious slow chain, against the warpers of transformers, and against chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.sampling import Distribution, Sampler, SamplingSettings, draw_weights
from edgeinfer.errors import BadSetting, EdgeInferError, NotFinite

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def slow_chain(logits: np.ndarray, history: list[int], s: SamplingSettings) -> dict[int, float]:
    """The chain as its documentation reads, token by token."""
    values = {token: float(np.float32(logit)) for token, logit in enumerate(logits)}
    for token, bias in s.logit_bias.items():
        values[token] = float(np.float32(values[token]) + np.float32(bias))
    window = history if s.penalty_window < 0 else history[len(history) - min(s.penalty_window, len(history)) :]
    for token in set(window):
        value, count = np.float32(values[token]), window.count(token)
        value = value / np.float32(s.repeat_penalty) if value > 0 else value * np.float32(s.repeat_penalty)
        values[token] = float(value - np.float32(count * s.frequency_penalty + s.presence_penalty))
    order = sorted(values, key=lambda token: (-values[token], token))
    if s.top_k:
        order = order[: s.top_k]
    if s.top_p < 1:
        weights = [math.exp(values[token] - values[order[0]]) for token in order]
        total, reached, n_kept = sum(weights), 0.0, 0
        while n_kept < len(order) and reached < s.top_p * total:
            reached += weights[n_kept]
            n_kept += 1
        order = order[:n_kept]
    if s.min_p:
        order = [token for token in order if values[token] - values[order[0]] >= math.log(s.min_p)]
    weights = [math.exp((values[token] - values[order[0]]) / s.temperature) for token in order]
    return {token: weight / sum(weights) for token, weight in zip(order, weights, strict=True) if weight}


chains = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 40, 1000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    penalty_window=st.sampled_from([-1, 0, 2, 64]),
    logit_bias=st.dictionaries(st.integers(0, 49), st.sampled_from([-math.inf, -2.0, 3.0]), max_size=3),
)


def test_peaks_lead_to_the_same_token() -> None:
    draw, greedy = np.random.default_rng(3), Sampler(SamplingSettings(temperature=0))
    strange = draw.normal(0, 3, 1000)
    strange[700] = np.inf
    for values in (draw.normal(0, 3, 1000), -draw.random(1000), draw.integers(0, 5, 1000), strange, draw.random(512)):
        logits = values.astype(np.float32)
        spread = np.full(-(-len(logits) // PEAK_BLOCK) * PEAK_BLOCK, -3e38, np.float32)
        spread[: len(logits)] = np.where(np.isfinite(logits), logits, np.nan)
        peaks = spread.reshape(-1, PEAK_BLOCK // PEAK_LANES, PEAK_LANES).max(1).reshape(-1)
        if values is strange:
            with pytest.raises(NotFinite, match=r"token 700 \(infinity\)"):
                greedy.choose(logits, [], 0, peaks)
        else:
            assert greedy.choose(logits, [], 0, peaks) == int(logits.argmax())
        biased = Sampler(SamplingSettings(temperature=0, logit_bias={7: 1e4}))
        assert biased.choose(np.nan_to_num(logits, posinf=9.0), [], 0, peaks) == 7
    with pytest.raises(EdgeInferError, match="NaN"):
        greedy.choose(np.full(512, np.nan, np.float32), [], 0, np.full(16, np.nan, np.float32))


@settings(max_examples=300, deadline=None)
@given(chains, st.integers(0, 10_000), st.lists(st.integers(0, 49), max_size=8))
def test_the_distribution_is_that_of_the_slow_chain(chain: SamplingSettings, seed: int, history: list[int]) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, 50).astype(np.float32)
    found = Sampler(chain).distribution(logits, history)
    expected = slow_chain(logits, history, chain)
    assert found.tokens.tolist() == sorted(expected)
    np.testing.assert_allclose(found.probabilities, [expected[t] for t in sorted(expected)], rtol=1e-6, atol=1e-12)


@settings(max_examples=300, deadline=None)
@given(chains, st.integers(0, 10_000), st.lists(st.integers(0, 49), max_size=8))
def test_weights_of_known_tokens_are_those_of_the_slow_chain(
    chain: SamplingSettings, seed: int, history: list[int]
) -> None:
    """In any order, if all tokens are known."""
    draw = np.random.default_rng(seed)
    logits, order = draw.normal(0, 3, 50).astype(np.float32), draw.permutation(50)
    weights = np.exp(draw_weights(chain, order, logits[order], history))
    expected = slow_chain(logits, history, chain)
    shares = [expected.get(token, 0.0) for token in order.tolist()]
    np.testing.assert_allclose(weights / weights.sum(), shares, rtol=1e-6, atol=1e-12)


def test_weights_with_temperature_0_say_how_far_below_the_best_tokens_are() -> None:
    chain, tokens = SamplingSettings(temperature=0, repeat_penalty=2.0, logit_bias={9: 1.0}), np.array([4, 9, 2])
    found = draw_weights(chain, tokens, np.array([8.0, 5.5, 5.0], np.float32), [1, 4])
    assert found.tolist() == [-2.5, 0.0, -1.5]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_weights_where_nothing_or_only_one_token_is_possible(temperature: float) -> None:
    chain = SamplingSettings(temperature=temperature, logit_bias={4: -math.inf, 9: -math.inf})
    logits = np.array([8.0, 5.5, np.inf], np.float32)
    assert draw_weights(chain, np.array([4, 9]), logits[:2], []).tolist() == [-math.inf, -math.inf]
    assert draw_weights(chain, np.array([4, 9, 2]), logits, []).tolist() == [-math.inf, -math.inf, 0.0]


@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"top_p": 0.3}, {"top_k": 40}, {"top_k": 3000}, {"top_k": 19_999}])
@pytest.mark.parametrize("digits", [9, 1])
def test_a_large_vocabulary_gives_the_tokens_of_the_slow_chain(options: dict[str, float], digits: int) -> None:
    logits = np.random.default_rng(5).normal(0, 1.5, 20_001).round(digits).astype(np.float32)
    chain = SamplingSettings(**{**OFF, **options})
    assert Sampler(chain).distribution(logits, []).tokens.tolist() == sorted(slow_chain(logits, [], chain))


@pytest.mark.parametrize("options", [{"top_k": 40}, {"top_k": 3, "top_p": 0.8}, {"top_p": 0.9}])
@pytest.mark.parametrize("n_possible", [1, 2, 39, 40, 41, 300, 15_000])
def test_under_a_mask_what_is_possible_is_as_in_the_slow_chain(options: dict[str, float], n_possible: int) -> None:
    rng = np.random.default_rng(n_possible)
    logits = np.full(20_001, -np.inf, np.float32)
    possible = rng.choice(len(logits), n_possible, replace=False)
    logits[possible] = rng.normal(0, 1.5, n_possible)
    chain = SamplingSettings(**{**OFF, **options})
    found, expected = Sampler(chain).distribution(logits, []), slow_chain(logits, [], chain)
    assert found.tokens.tolist() == sorted(expected)
    np.testing.assert_allclose(found.probabilities, [expected[t] for t in sorted(expected)], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "warper"),
    [
        ({"top_k": 7}, "TopKLogitsWarper(7)"),
        ({"top_p": 0.8}, "TopPLogitsWarper(0.8)"),
        ({"min_p": 0.1}, "MinPLogitsWarper(0.1)"),
        ({"temperature": 0.6}, "TemperatureLogitsWarper(0.6)"),
        ({"repeat_penalty": 1.4, "penalty_window": -1}, "RepetitionPenaltyLogitsProcessor(1.4)"),
    ],
)
def test_each_link_agrees_with_transformers(options: dict[str, float], warper: str) -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    history = [3, 17, 17, 80]
    logits = np.random.default_rng(11).normal(0, 3, 200).astype(np.float32)
    name, argument = warper.rstrip(")").split("(")
    scores = getattr(process, name)(float(argument) if "." in argument else int(argument))(
        torch.tensor([history]), torch.tensor(logits[None])
    )
    expected = torch.softmax(scores[0].double(), -1).numpy()
    found = Sampler(SamplingSettings(**{**OFF, **options})).distribution(logits, history).dense(200)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("across", ["draws", "seeds", "both"])
def test_draws_follow_the_distribution(across: str) -> None:
    stats = pytest.importorskip("scipy.stats")
    logits = np.random.default_rng(2).normal(0, 2, 30).astype(np.float32)
    wanted = Sampler(SamplingSettings(temperature=0.8, top_k=10, top_p=0.9, min_p=0.01)).distribution(logits, [])
    n_draws = 4000
    drawn = [
        wanted.draw(Noise.of(42 if across == "draws" else number), 7 if across == "seeds" else number)
        for number in range(n_draws)
    ]
    counts = np.bincount(drawn, minlength=30)
    assert counts.sum() == counts[wanted.tokens].sum()
    chance = stats.chisquare(counts[wanted.tokens], wanted.probabilities * n_draws).pvalue
    assert chance > 0.001


def test_the_nth_draw_depends_on_seed_and_n_alone() -> None:
    logits = np.random.default_rng(2).normal(0, 1, 1000).astype(np.float32)
    chain = SamplingSettings(temperature=1, seed=7)
    forwards = [Sampler(chain).choose(logits, [], n) for n in range(20)]
    sampler = Sampler(chain)
    assert [sampler.choose(logits, [], n) for n in reversed(range(20))] == forwards[::-1]
    other = Sampler(SamplingSettings(temperature=1, seed=8))
    assert [other.choose(logits, [], n) for n in range(20)] != forwards
    assert len(set(forwards)) > 10


@pytest.mark.parametrize("options", [{}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"top_k": 3}])
def test_the_token_has_the_highest_log_probability_plus_gumbel_noise(options: dict[str, float]) -> None:
    """As defined, over the whole vocabulary; so what a warper removed does not change the rest of the draw."""
    logits = np.random.default_rng(4).normal(0, 2, 40_000).astype(np.float32)
    sampler = Sampler(SamplingSettings(temperature=0.8, seed=5, **options))
    with np.errstate(divide="ignore"):
        log_p = np.log(sampler.distribution(logits, []).dense(len(logits)))
    for n in range(30):
        gumbel = -np.log(sampler.noise.exponentials(n, np.arange(len(logits))))
        assert sampler.choose(logits, [], n) == int((log_p + gumbel).argmax())


@pytest.mark.parametrize("temperature", [0.02, 0.01, 0.005])
def test_of_weights_that_are_nearly_nothing_the_highest_still_wins(temperature: float) -> None:
    """Near the least number there is, noise divided by a weight is infinite, of which NumPy warns."""
    logits = np.random.default_rng(0).normal(0, 3, 50_000).astype(np.float32)
    sampler = Sampler(SamplingSettings(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=1))
    assert 0 < sampler.distribution(logits, []).weights.min() < 1e-308
    noise = -np.log(sampler.noise.exponentials(3, np.arange(len(logits))))
    assert sampler.choose(logits, [], 3) == (logits / temperature + noise).argmax()


def test_without_a_seed_one_is_chosen_and_told() -> None:
    sampler = Sampler(SamplingSettings(temperature=1))
    again = Sampler(SamplingSettings(temperature=1, seed=sampler.seed))
    assert sampler.noise == again.noise
    assert sampler.seed != Sampler(SamplingSettings()).seed


def test_greedy_takes_the_lowest_of_equals_and_minds_penalties_and_bias() -> None:
    logits = np.array([1, 5, 5, 4.5], np.float32)
    assert Sampler(SamplingSettings(temperature=0)).choose(logits, [], 0) == 1
    assert Sampler(SamplingSettings(temperature=0, repeat_penalty=2)).choose(logits, [1], 0) == 2
    assert Sampler(SamplingSettings(temperature=0, logit_bias={3: 1.0})).choose(logits, [], 0) == 3
    only = Sampler(SamplingSettings(temperature=0)).distribution(logits, [])
    assert (only.tokens.tolist(), only.probabilities.tolist()) == ([1], [1.0])
    assert logits.tolist() == [1, 5, 5, 4.5]


def test_suppressed_tokens_are_not_chosen_unless_a_bias_names_them() -> None:
    logits = np.array([1, 5, 5, 4.5], np.float32)
    sampler = Sampler(SamplingSettings(temperature=0), {1, 2})
    assert (sampler.choose(logits, [], 0), sampler.settings.takes_likeliest, sampler.suppressed) == (3, True, {1, 2})
    assert Sampler(SamplingSettings(temperature=0, logit_bias={2: 0.0}), [1, 2]).choose(logits, [], 0) == 2
    drawn = Sampler(SamplingSettings(**OFF), {1, 2}).distribution(logits, [])
    assert drawn.tokens.tolist() == [0, 3]
    assert logits.tolist() == [1, 5, 5, 4.5]


def test_of_equal_logits_at_the_edge_of_top_k_the_lowest_tokens_stay() -> None:
    found = Sampler(SamplingSettings(**{**OFF, "top_k": 3})).distribution(np.array([1, 2, 1, 1, 2], np.float32), [])
    assert found.tokens.tolist() == [0, 1, 4]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinity_are_errors_and_minus_infinity_is_impossible(temperature: float) -> None:
    sampler = Sampler(SamplingSettings(temperature=temperature, seed=1))
    with pytest.raises(EdgeInferError, match=r"token 2 \(NaN\)"):
        sampler.choose(np.array([1, np.inf, np.nan], np.float32), [], 0)
    with pytest.raises(EdgeInferError, match="every token is forbidden"):
        sampler.choose(np.full(3, -np.inf, np.float32), [], 0)
    with pytest.raises(NotFinite, match=r"token 1 \(infinity\)"):
        sampler.choose(np.array([1, np.inf, 2], np.float32), [], 0)
    assert sampler.choose(np.array([-np.inf, -np.inf, 2], np.float32), [], 0) == 2


def test_a_distribution_never_gives_an_impossible_token() -> None:
    noise, distribution = Noise.of(1), Distribution(np.array([4, 9]), np.array([1e-300, 3.0]))
    assert {distribution.draw(noise, n) for n in range(500)} == {9}
    assert distribution.probabilities.tolist() == [1e-300 / 3, 1.0]
    assert Distribution(np.array([4]), np.array([1e-300])).draw(noise, 0) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": "much"},
        {"min_p": 2},
        {"repeat_penalty": 0},
        {"repeat_penalty": 1e-46},
        {"repeat_penalty": 1e39},
        {"penalty_window": -2},
        {"seed": -1},
        {"presence_penalty": math.inf},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {"1": 2.0}},
        {"logit_bias": {1: "much"}},
        {"logit_bias": [1]},
    ],
)
def test_impossible_settings_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match=next(iter(options))):
        SamplingSettings(**options)


def test_a_bias_for_no_token_is_refused() -> None:
    with pytest.raises(BadSetting, match="token 9; the vocabulary has tokens 0 to 2"):
        Sampler(SamplingSettings(logit_bias={9: 1.0})).choose(np.zeros(3, np.float32), [], 0)
