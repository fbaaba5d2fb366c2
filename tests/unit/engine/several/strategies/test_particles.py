"""Particles: kept as their weights say, and led by any potential."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.several.resampling import effective_size, shares, systematic

PROMPT = "the rain in the tin, the hen in the inn, and a moth in the broth; " * 2
HOT: dict[str, Any] = {"temperature": 1.2, "max_tokens": 40}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Iterator[LLM]:
    """The same model without drafts, in which nothing is shared with the answers."""
    with load(tiny_model, device="cpu", n_sessions=1, spec="off") as loaded:
        yield loaded


def test_particles_are_kept_as_their_weights_say(llm: LLM, plain: LLM) -> None:
    """The first resampling, done again from answers written one after the other."""
    n, every, power, seed = 6, 5, 3.0, 40
    options = {"ignore_eos": True, "temperature": 1.0, "max_tokens": 8, "logprobs": 0}
    several = llm.several(PROMPT, n, lead=f"particles:every={every},power={power},share=1", seed=seed, **options)
    several.read()
    weights = []
    for each in range(n):
        stream = plain.complete(PROMPT, seed=seed + each, **options)
        stream.read()
        weights.append((power - 1) * sum(told.logprob for told in stream.logprobs[:every]))
    assert effective_size(shares(weights)) < n
    counts = systematic(shares(weights), random.Random(seed).random())
    forks = [fork.parent for fork in several.forks[n:] if fork is not None and fork.n_tokens == every]
    assert forks == [each for each, count in enumerate(counts) for _ in range(count - 1)]
    assert several.choice is not None
    assert {each for each, count in enumerate(counts) if count == 0} <= set(several.choice.left)


def test_a_potential_leads_particles(llm: LLM) -> None:
    def vowels(text: str) -> float:
        return math.exp(sum(letter in "aeiou" for letter in text))

    def mean(potential: object) -> float:
        found = []
        for seed in range(0, 60, 10):
            several = llm.several(
                PROMPT, 6, lead="particles:every=4", potential=potential, seed=seed, ignore_eos=True, **HOT
            )
            several.read()
            texts = [a.text for a in several.answers if a.stats is not None and a.stats.finish_reason == "length"]
            found += [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in texts]
        return sum(found) / len(found)

    assert mean(vowels) > mean(lambda text: 1.0) * 1.2
    with pytest.raises(BadSetting, match="from 0 on"):
        llm.several(PROMPT, 3, lead="particles:every=2", potential=lambda text: -1.0, seed=1, **HOT).read()
    assert llm.telemetry.queue.n_active == 0
