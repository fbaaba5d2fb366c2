"""Picks on scripted samples: what is decided early equals what is decided when all samples have come to an end."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest

from edgeinfer.scheduling.several.picks import PICKS
from edgeinfer.scheduling.several.samples import Pick, Rules, SampledAnswer, Verdict


@dataclass(frozen=True)
class Script:
    """What a sample will be: its length, what it says, the log probability of each token."""

    n_tokens: int
    answer: str | None
    logprob: float
    is_whole: bool = True

    def at(self, number: int, n_tokens: int) -> SampledAnswer:
        if n_tokens < self.n_tokens:
            return SampledAnswer(number, n_tokens, logprob=self.logprob * n_tokens)
        answer = self.answer if self.is_whole else None
        own = self.n_tokens, True, self.is_whole, answer, (number,), self.logprob * self.n_tokens
        return SampledAnswer(number, *own, passed=self.is_whole and answer == "a")


def run(pick: Pick, scripts: list[Script], rules: Rules, speeds: list[int]) -> tuple[Verdict, list[SampledAnswer], int]:
    """Let samples advance until the pick has decided; also how many tokens that took."""
    samples, left, step = [SampledAnswer(number) for number in range(len(scripts))], set[int](), 0
    while True:
        step += 1
        for number, script in enumerate(scripts):
            if number in left:
                samples[number] = replace(samples[number], is_over=True)
            else:
                samples[number] = script.at(number, min(script.n_tokens, step * speeds[number]))
        verdict = pick.verdict(samples, rules)
        left |= verdict.leave
        if verdict.chosen is not None:
            return verdict, samples, sum(sample.n_tokens for sample in samples)
        assert not all(sample.is_over for sample in samples), "nothing is left to wait for"


def scripted(rng: random.Random, n: int) -> list[Script]:
    return [
        Script(rng.randint(1, 30), rng.choice(["a", "b", "c", None]), rng.uniform(-3, -0.1), rng.random() < 0.9)
        for _ in range(n)
    ]


def ended(scripts: list[Script]) -> list[SampledAnswer]:
    return [script.at(number, script.n_tokens) for number, script in enumerate(scripts)]


@pytest.mark.parametrize("name", PICKS.keys())
def test_every_pick_decides_and_chooses_a_lane_that_ended_by_itself_if_there_is_one(name: str) -> None:
    for rng in map(random.Random, range(60)):
        scripts = scripted(rng, rng.randint(1, 9))
        rules = Rules(rng.choice([0, 1, 2, 3]), rng.choice([1.0, 0.9]))
        verdict, samples, _ = run(PICKS.get(name), scripts, rules, [rng.randint(1, 4) for _ in scripts])
        assert verdict.chosen is not None
        assert verdict.reason
        assert samples[verdict.chosen].is_whole or not any(sample.is_whole for sample in samples)


def test_the_vote_is_not_changed_by_stopping_early() -> None:
    pick = PICKS.get("vote")
    for rng in map(random.Random, range(200)):
        scripts = scripted(rng, 9)
        verdict, samples, _ = run(pick, scripts, Rules(), [rng.randint(1, 4) for _ in scripts])
        whole = pick.verdict(ended(scripts), Rules())
        assert verdict.chosen is not None
        assert whole.chosen is not None
        assert samples[verdict.chosen].answer == ended(scripts)[whole.chosen].answer


@pytest.mark.parametrize("name", ["shortest", "likely"])
def test_what_the_shortest_and_the_likeliest_are_does_not_depend_on_speed(name: str) -> None:
    pick = PICKS.get(name)
    for rng in map(random.Random, range(200)):
        scripts = scripted(rng, 7)
        rules = Rules(rng.choice([0, 3]) if name == "shortest" else 0)
        verdict, _, _ = run(pick, scripts, rules, [rng.randint(1, 5) for _ in scripts])
        if any(script.is_whole for script in scripts):
            assert verdict.chosen == pick.verdict(ended(scripts), rules).chosen


def test_weights_that_cannot_be_reached_decide_early() -> None:
    for rng in map(random.Random, range(200)):
        scripts = [replace(each, is_whole=True, answer=each.answer or "b") for each in scripted(rng, 5)]
        verdict, samples, _ = run(PICKS.get("weighted"), scripts, Rules(), [rng.randint(1, 5) for _ in scripts])
        totals: dict[str | None, float] = {}
        for script in scripts:
            totals[script.answer] = totals.get(script.answer, 0.0) + math.exp(script.logprob * script.n_tokens)
        assert verdict.chosen is not None
        assert samples[verdict.chosen].answer == max(totals, key=lambda answer: totals[answer])


def test_the_shortest_saves_three_tenths_of_the_tokens_of_a_vote() -> None:
    """On lengths as reasoning has them (log-normal), with answers of which the shorter are the better ones."""
    spent: dict[str, int] = {"vote": 0, "shortest": 0}
    right: dict[str, int] = {"vote": 0, "shortest": 0}
    for rng in map(random.Random, range(100)):
        scripts = []
        for _ in range(8):
            n_tokens = max(1, round(rng.lognormvariate(5, 0.6)))
            is_right = rng.random() < (0.7 if n_tokens < 150 else 0.5)
            scripts.append(Script(n_tokens, "a" if is_right else rng.choice("bc"), -0.5))
        for name in spent:
            verdict, samples, n_tokens = run(PICKS.get(name), scripts, Rules(), [5] * 8)
            assert verdict.chosen is not None
            spent[name] += n_tokens
            right[name] += samples[verdict.chosen].answer == "a"
    assert spent["shortest"] <= 0.7 * spent["vote"]
    assert right["shortest"] >= 60


def test_the_check_takes_the_first_that_passes_and_says_when_none_does() -> None:
    pick = PICKS.get("check")
    scripts = [Script(9, "b", -1), Script(4, "c", -1), Script(6, "a", -1), Script(30, "a", -1)]
    verdict, samples, _ = run(pick, scripts, Rules(), [1] * 4)
    assert (verdict.chosen, samples[3].n_tokens) == (2, 6)
    verdict, _, _ = run(pick, [Script(3, "b", -1), Script(5, "b", -1), Script(2, "c", -1)], Rules(), [1] * 3)
    assert (verdict.chosen, verdict.reason) == (0, "none of 3 answers passed the check; the most frequent is kept")


def test_the_medoid_is_most_like_the_others() -> None:
    samples = [
        replace(sample, likeness=value)
        for sample, value in zip(ended([Script(3, "a", -1)] * 3), (0.2, 0.7, 0.4), strict=True)
    ]
    verdict = PICKS.get("medoid").verdict(samples, Rules())
    assert (verdict.chosen, verdict.reason) == (1, "most like the other 2: 0.70 on average")


def test_confidence_ends_a_vote_before_it_is_certain() -> None:
    scripts = [Script(n + 1, "a", -1) for n in range(16)]
    sure, _, few = run(PICKS.get("vote"), scripts, Rules(confidence=0.95), [1] * 16)
    _, _, many = run(PICKS.get("vote"), scripts, Rules(), [1] * 16)
    assert few < many
    assert "probability" in sure.reason


@pytest.mark.parametrize("said", ["aaabbbbb", "abaaaaaa", "abcabcaa", "aabaaaab"])
@pytest.mark.parametrize("most", [0.0, 0.6, 1.0])
def test_a_low_entropy_of_three_or_more_votes_ends_a_vote(said: str, most: float) -> None:
    def entropy(votes: str) -> float:
        shares = [votes.count(each) / len(votes) for each in set(votes)]
        return -sum(share * math.log(share) for share in shares)

    whole = ended([Script(5, each, -1) for each in said])
    first = next((n for n in range(3, 9) if entropy(said[:n]) <= most + 1e-12), 8)
    for n in range(1, first + 1):
        samples = [*whole[:n], *(SampledAnswer(number, 3) for number in range(n, 8))]
        verdict = PICKS.get("vote").verdict(samples, Rules(most_entropy=most))
        is_certain = PICKS.get("vote").verdict(samples, Rules()).chosen is not None
        assert (verdict.chosen is not None) == (n == first or is_certain)
        assert is_certain or n < first or "entropy" in verdict.reason


@pytest.mark.parametrize("name", [name for name in PICKS.keys() if name != "check"])  # noqa: SIM118
def test_what_stands_for_no_answer_is_not_kept(name: str) -> None:
    cut = [SampledAnswer(0, 9, is_over=True, weight=0.0), SampledAnswer(1, 5, is_over=True)]
    assert PICKS.get(name).verdict(cut, Rules()).chosen == 1


def test_votes_count_as_many_answers_as_each_stands_for() -> None:
    whole = [
        SampledAnswer(number, 5, is_over=True, is_whole=True, answer=answer, weight=weight)
        for number, (answer, weight) in enumerate([("a", 1.0), ("a", 1.0), ("b", 3.0)])
    ]
    assert PICKS.get("vote").verdict(whole, Rules()).chosen == 2
