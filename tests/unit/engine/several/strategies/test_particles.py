"""Particles: kept as their weights say, and led by any potential."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.engine.several.strategies.particles import Particles, ParticlesLeader
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


CHAIN = {"": {"a": 0.5, "b": 0.3, ".": 0.2}, "a": {"a": 0.2, "b": 0.3, ".": 0.5}, "b": {"a": 0.6, "b": 0.1, ".": 0.3}}
"""Probabilities of letters after each other; a full stop ends a text, which has at most MOST letters."""
MOST = 5


@dataclass
class Drawn:
    """A text of the chain that is already over."""

    text: str
    logprobs: list[TokenLogprobs]
    end_logprobs: TokenLogprobs | None

    @property
    def tokens(self) -> str:
        return self.text


class DrawnAnswers:
    """Answers that are whole as soon as they begin, so that all of them are ahead of where they are weighed."""

    def __init__(self, n: int, draw: random.Random) -> None:
        self._draw = draw
        self.answers = tuple(self._drawn("", []) for _ in range(n))
        self.weights: dict[int, float] = {}
        self.dropped: set[int] = set()

    @property
    def ended(self) -> range:
        return range(len(self.answers))

    def _drawn(self, text: str, told: list[TokenLogprobs]) -> Drawn:
        told = list(told)
        while len(text) < MOST:
            ways = CHAIN[text[-1:]]
            (letter,) = self._draw.choices(list(ways), list(ways.values()))
            chosen = TokenLogprobs(ord(letter), math.log(ways[letter]), ())
            if letter == ".":
                return Drawn(text, told, chosen)
            text, told = text + letter, [*told, chosen]
        return Drawn(text, told, None)

    def beginning(self, number: int, n_tokens: int) -> str:
        return self.answers[number].text[:n_tokens]

    def fork(self, number: int, n_tokens: int, more: object = ()) -> int:
        parent = self.answers[number]
        self.answers = (*self.answers, self._drawn(parent.text[:n_tokens], parent.logprobs[:n_tokens]))
        return len(self.answers) - 1

    def drop(self, number: int) -> None:
        self.dropped.add(number)

    def weigh(self, number: int, weight: float) -> None:
        self.weights[number] = weight

    def expect(self, n: int) -> None:
        assert n >= len(self.answers)


def probabilities(text: str = "") -> dict[str, float]:
    """Of all texts of the chain that begin so, the full stop where there is one."""
    if len(text) == MOST or text.endswith("."):
        return {text: 1.0}
    ways = CHAIN[text[-1:]].items()
    return {whole: own * chance for letter, own in ways for whole, chance in probabilities(text + letter).items()}


@pytest.mark.parametrize(("every", "share"), [(1, 1.0), (2, 0.7), (3, 1.0), (9, 0.5)])
@pytest.mark.parametrize("power", [0.5, 2.0])
def test_what_is_kept_has_the_probability_to_a_power(every: int, share: float, power: float) -> None:
    draw, n, found = random.Random(every), 300, dict[str, float]()
    plan, n_runs = Particles(every=every, power=power, share=share), 30
    for _ in range(n_runs):
        answers = DrawnAnswers(n, draw)
        leader = ParticlesLeader(plan, n, MOST, draw)
        while not any(answers.weights.values()):
            leader.look(answers)  # type: ignore[arg-type]
        assert sum(answers.weights.values()) == pytest.approx(n)
        for number, weight in answers.weights.items():
            assert not (weight and number in answers.dropped)
            own = answers.answers[number]
            text = own.text + ("" if own.end_logprobs is None else ".")
            found[text] = found.get(text, 0.0) + weight / (n * n_runs)
    powers = {text: chance**power for text, chance in probabilities().items()}
    total = sum(powers.values())
    distance = sum(abs(found.get(text, 0.0) - weight / total) for text, weight in powers.items()) / 2
    plain = sum(abs(chance - powers[text] / total) for text, chance in probabilities().items()) / 2
    assert distance < 0.06 < plain / 4
