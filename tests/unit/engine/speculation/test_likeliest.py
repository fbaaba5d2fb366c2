"""The compiled search for likely tokens against plain Python, and a sampler with it against one without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.sampling import Biases, Sampler, SamplingSettings
from edgeinfer.engine.speculation.drafts import loops_library
from edgeinfer.engine.speculation.likeliest import MOST_FOUND, MOST_SEEN, LikeliestTokens
from tests.conftest import write_tiny_llama
from tests.unit.engine.speculation.test_loops import peaks_of

CHAT = SamplingSettings(repeat_penalty=1.1, seed=5)


@pytest.fixture(scope="module")
def finder() -> LikeliestTokens:
    return LikeliestTokens(loops_library())


def in_order(
    logits: np.ndarray, n: int, window: list[int], chain: SamplingSettings, biases: dict[int, float]
) -> tuple[list[int], list[float]]:
    """The likeliest tokens, token by token."""
    values = {}
    for token, logit in enumerate(logits):
        value, times = np.float32(logit) + np.float32(biases.get(token, 0.0)), window.count(token)
        if times:
            factor = np.float32(chain.repeat_penalty)
            value = value / factor if value > 0 else value * factor
            value -= np.float32(times * chain.frequency_penalty + chain.presence_penalty)
        values[token] = float(value)
    order = sorted(values, key=lambda token: (-values[token], token))[:n]
    return order, [values[token] for token in order]


penalties = st.builds(
    SamplingSettings,
    repeat_penalty=st.sampled_from([1.0, 1.1, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.5, -3.0]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
)


@settings(max_examples=150, deadline=None)
@given(
    penalties,
    st.sampled_from([40, 511, 512, 513, 3000]),
    st.sampled_from([1, 2, 40, MOST_FOUND]),
    st.integers(0, 10_000),
    st.lists(st.integers(0, 39), max_size=90),
    st.dictionaries(st.integers(0, 39), st.sampled_from([-math.inf, -2.0, 30.0]), max_size=3),
    st.booleans(),
)
def test_the_likeliest_tokens_are_those_of_plain_python(
    finder: LikeliestTokens,
    chain: SamplingSettings,
    n_vocab: int,
    n: int,
    seed: int,
    window: list[int],
    biases: dict[int, float],
    rounds: bool,
) -> None:
    """Also where many logits are equal, and where the tokens with penalties are the likeliest of all."""
    logits = np.random.default_rng(seed).normal(0, 3, n_vocab).astype(np.float32)
    logits[: seed % 40] += 6
    if rounds:
        logits = logits.round()
    tokens = Biases(list(biases), list(biases.values()))
    found = finder.find(logits, peaks_of(logits[None])[0], n, window, chain, tokens)
    expected = in_order(logits, n, window, chain, biases)
    if expected[1][-1] == -math.inf:  # then too few are possible
        assert found is None
    else:
        assert found == expected


def test_it_says_when_it_cannot_tell(finder: LikeliestTokens) -> None:
    logits, nothing = np.zeros(600, np.float32), Biases([], [])
    for strange in (math.nan, math.inf, -math.inf):
        logits[77] = strange
        assert finder.find(logits, peaks_of(logits[None])[0], 3, (), CHAT, nothing) is None
    logits[77] = 1.0
    peaks = peaks_of(logits[None])[0]
    assert finder.find(logits, peaks, MOST_FOUND + 1, (), CHAT, nothing) is None
    assert finder.find(logits, peaks, 3, [1] * (MOST_SEEN + 1), CHAT, nothing) is None
    assert finder.find(logits, peaks, 1, [1] * MOST_SEEN, CHAT, nothing) == ([77], [1.0])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_sampler_chooses_the_same_tokens_with_it_and_without(finder: LikeliestTokens, temperature: float) -> None:
    draw, chain = np.random.default_rng(8), replace(CHAT, temperature=temperature, logit_bias={3: 2.0})
    asked = []

    class Watched(LikeliestTokens):
        def find(self, *given: object) -> tuple[list[int], list[float]] | None:
            asked.append(super().find(*given))  # type: ignore[arg-type]
            return asked[-1]

    fast, slow = (Sampler(chain, (5, 900), each) for each in (Watched(loops_library()), None))
    history = draw.integers(0, 2000, 80).tolist()
    for n in range(60):
        logits = draw.normal(0, 2, 2000).astype(np.float32)
        logits[history[-20:]] += 9
        peaks = peaks_of(logits[None])[0]
        token = fast.choose(logits, history, n, peaks)
        assert token == slow.choose(logits, history, n, peaks)
        if temperature:
            assert fast.drawn_from is not None
            assert slow.drawn_from is not None
            assert fast.drawn_from.tokens.tolist() == slow.drawn_from.tokens.tolist()
            assert fast.drawn_from.weights.tolist() == slow.drawn_from.weights.tolist()
        history.append(token)
    assert len(asked) == 60
    assert None not in asked


def test_a_bias_for_a_token_that_is_not_there_is_refused(finder: LikeliestTokens) -> None:
    logits = np.zeros(600, np.float32)
    sampler = Sampler(replace(CHAT, logit_bias={600: 1.0}), (), finder)
    with pytest.raises(Exception, match="logit_bias names token 600"):
        sampler.choose(logits, [], 0, peaks_of(logits[None])[0])


def watched(found: list[object]) -> Callable[..., object]:
    """The search, which also notes what it finds."""
    find = LikeliestTokens.find

    def noting(self: LikeliestTokens, *given: object) -> object:
        found.append(find(self, *given))  # type: ignore[arg-type]
        return found[-1]

    return noting


def test_answers_with_and_without_drafts_use_it(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    monkeypatch.setattr(LikeliestTokens, "find", watched(found))
    with load(write_tiny_llama(tmp_path / "tiny.gguf"), threads=1, n_context=64, spec=4) as llm:
        for drafts in (llm.drafts, None):
            with llm.session_with(lambda drafts=drafts: drafts) as session:
                stream = session.complete("the rain", seed=3, max_tokens=6)
                stream.read()
            assert len(found) >= len(stream.tokens) > 0
            assert None not in found
            found.clear()
