"""What the rules of keeping one of several answers cost and gain, on scripted answers of which the right one is known.

Run: `python scripts/measure_several_rules.py [--questions 1000] [--trials 300] [--json]`. No model is read and nothing
is timed: every number follows from the seeds and the assumptions below, so that rules can be compared, not models.

First table, each pick against a vote that reads all answers to their end:
- A question is answered right with a probability of its own, Beta(2.4, 1.6) (0.6 on average); wrong answers are five,
  each half as frequent as the one before.
- Lengths are log-normal, sigma 0.5, with a median of 300 tokens for right answers and `ratio` times that for wrong
  ones. That wrong ones are longer on average is what arXiv 2505.17813 finds of reasoning models; with a ratio of 1
  lengths say nothing. One answer in 50 is cut by a limit and says nothing.
- A token of a right answer has a mean log probability of -0.35, of a wrong one of -0.40 (sigma 0.05 between answers).
- The likeness of an answer is the share of the others that say the same, with noise of 0.15, as embeddings have it; a
  check accepts right answers with a probability of 0.95, and wrong ones with 0.05.
- All answers advance by a token a pass, so the first are the shortest. What is not needed any more ends at once.
Errors have Wilson's intervals, savings those of a bootstrap over questions, both of 95 %.

Second table, votes weighted by probability (arXiv 2502.00511) of 0.6 times the samples of a plain vote: the right
answer has 0.42 of the probability, and more than each of three others; every answer is reached on some paths, whose
probabilities are known and fall with their rank to a power. The claim holds if an answer that is more probable has more
probable paths; `spread`, how many times the paths of a wrong answer the right one has, is where it fails.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from edgeinfer.scheduling.several.picks import PICKS
from edgeinfer.scheduling.several.samples import Rules, SampledAnswer

RIGHT = 0
N_WRONG = 5
N_ANSWERS = 8
MEDIAN, SIGMA = 300, 0.5
GRID = 16
"""Tokens between two looks at picks that depend on log probabilities, beside the ends of answers."""
ROWS: tuple[tuple[str, Rules], ...] = (
    ("vote", Rules()),
    ("vote", Rules(confidence=0.95)),
    ("vote", Rules(enough=5)),
    ("weighted", Rules()),
    ("shortest", Rules()),
    ("shortest", Rules(enough=3)),
    ("first", Rules()),
    ("first", Rules(enough=3)),
    ("likely", Rules()),
    ("medoid", Rules()),
    ("medoid", Rules(enough=4)),
    ("check", Rules()),
)
RATIOS = (1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What an answer will be: its length, what it says (RIGHT, or another number), the log probability of a token."""

    n_tokens: int
    answer: int
    token_logprob: float
    is_whole: bool
    passes: bool
    noise: float

    def after(self, number: int, n_passes: int) -> SampledAnswer:
        """The answer after so many passes."""
        n_tokens = min(self.n_tokens, n_passes)
        sample = SampledAnswer(number, n_tokens, path=number, logprob=self.token_logprob * n_tokens)
        if n_tokens < self.n_tokens:
            return sample
        said = self.answer if self.is_whole else None
        return replace(sample, is_over=True, is_whole=self.is_whole, answer=said, passed=self.is_whole and self.passes)


def question(rng: random.Random, ratio: float) -> list[ScriptedAnswer]:
    """The answers to a question; `ratio`: median length of wrong answers by that of right ones."""
    share = rng.betavariate(2.4, 1.6)
    wrong, shares = range(1, N_WRONG + 1), [0.5**rank for rank in range(N_WRONG)]
    scripts = []
    for _ in range(N_ANSWERS):
        is_right = rng.random() < share
        n_tokens = max(1, round(rng.lognormvariate(math.log(MEDIAN * (1.0 if is_right else ratio)), SIGMA)))
        scripts.append(
            ScriptedAnswer(
                n_tokens,
                RIGHT if is_right else rng.choices(wrong, shares)[0],
                min(-0.01, rng.gauss(-0.35 if is_right else -0.40, 0.05)),
                rng.random() >= 0.02,
                rng.random() < (0.95 if is_right else 0.05),
                rng.gauss(0, 0.15),
            )
        )
    return scripts


@dataclass(frozen=True, slots=True)
class Decided:
    """What a pick made of one question. `n_passes`: tokens of the longest answer when it was decided."""

    is_right: bool
    n_tokens: int
    n_passes: int


def decided(name: str, rules: Rules, scripts: Sequence[ScriptedAnswer]) -> Decided:
    """Let answers advance until the pick has decided."""
    pick = PICKS.get(name)
    looks = {script.n_tokens for script in scripts}
    if "logprobs" in pick.needs:
        looks |= set(range(GRID, max(looks), GRID))
    samples, left = [SampledAnswer(number) for number in range(len(scripts))], frozenset[int]()
    for n_passes in sorted(looks):
        for number, script in enumerate(scripts):
            if number not in left:
                samples[number] = script.after(number, n_passes)
        if "likeness" in pick.needs:
            samples = compared(samples, scripts)
        verdict = pick.verdict(samples, rules)
        for number in verdict.leave:
            samples[number] = replace(samples[number], is_over=True)
        left |= verdict.leave
        if verdict.chosen is not None:
            n_tokens = sum(sample.n_tokens for sample in samples)
            return Decided(samples[verdict.chosen].answer == RIGHT, n_tokens, n_passes)
    raise AssertionError(f"{name} has not decided though all answers are over")


def compared(samples: Sequence[SampledAnswer], scripts: Sequence[ScriptedAnswer]) -> list[SampledAnswer]:
    """Whole answers with their likeness to the others."""
    whole = [sample for sample in samples if sample.is_whole]
    if len(whole) < 2:
        return list(samples)

    def likeness(sample: SampledAnswer) -> float:
        same = sum(other.answer == sample.answer for other in whole) - 1
        return same / (len(whole) - 1) + scripts[sample.number].noise

    return [replace(sample, likeness=likeness(sample)) if sample.is_whole else sample for sample in samples]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A pick on many questions. `tokens`, `passes`: of one question on average; `saved`: a share of all tokens."""

    pick: str
    rules: str
    ratio: float
    error: float
    error_interval: tuple[float, float]
    tokens: float
    passes: float
    saved: float
    saved_interval: tuple[float, float]


def rule_rows(n_questions: int, ratio: float, rows: Sequence[tuple[str, Rules]] = ROWS) -> list[RuleRow]:
    """Each pick on the same questions, after the vote that reads everything."""
    rng = random.Random(17)
    questions = [question(rng, ratio) for _ in range(n_questions)]
    n_all = np.array([sum(script.n_tokens for script in scripts) for scripts in questions])
    found = []
    for name, rules in (("vote of all", Rules()), *rows):
        outcomes = [all_read(each) if name == "vote of all" else decided(name, rules, each) for each in questions]
        tokens = np.array([each.n_tokens for each in outcomes])
        n_wrong = sum(not each.is_right for each in outcomes)
        found.append(
            RuleRow(
                name,
                " ".join(f"{key}={value}" for key, value in asdict(rules).items() if value != asdict(Rules())[key]),
                ratio,
                n_wrong / n_questions,
                wilson(n_wrong, n_questions),
                float(tokens.mean()),
                sum(each.n_passes for each in outcomes) / n_questions,
                1 - float(tokens.sum() / n_all.sum()),
                bootstrapped(tokens, n_all),
            )
        )
    return found


def all_read(scripts: Sequence[ScriptedAnswer]) -> Decided:
    """The vote of all answers, each read to its end."""
    longest = max(script.n_tokens for script in scripts)
    samples = [script.after(number, longest) for number, script in enumerate(scripts)]
    chosen = PICKS.get("vote").verdict(samples, Rules()).chosen
    assert chosen is not None
    return Decided(samples[chosen].answer == RIGHT, sum(script.n_tokens for script in scripts), longest)


def wilson(n_hits: int, n: int) -> tuple[float, float]:
    """Wilson's interval of 95 % of a share."""
    z, share = 1.959964, n_hits / n
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / scale, (middle + half) / scale


def bootstrapped(tokens: np.ndarray, n_all: np.ndarray, n_rounds: int = 1000) -> tuple[float, float]:
    """The interval of 95 % of the share of tokens that are saved, by drawing questions again."""
    drawn = np.random.default_rng(5).integers(0, len(tokens), (n_rounds, len(tokens)))
    saved = 1 - tokens[drawn].sum(axis=1) / n_all[drawn].sum(axis=1)
    low, high = np.quantile(saved, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Answers by paths: how many a wrong one has, how many times that the right one, and how their chances fall."""

    n_paths: int
    power: float
    spread: int = 1


DISTRIBUTIONS = (
    Distribution(4, 1.0),
    Distribution(16, 1.0),
    Distribution(64, 1.5),
    Distribution(256, 0.0),
    Distribution(16, 1.0, spread=4),
)
SIZES = (10, 15, 20)
MOST_NEEDED = 0.6
"""The claim: the share of a vote's samples by which weights by probability reach its error."""
RIGHT_MASS = 0.42


def paths_of(rng: random.Random, shape: Distribution, n_answers: int = 4) -> list[tuple[int, int, float]]:
    """Paths (answer, number, probability); the right answer has the most probability."""
    while True:
        rest = [rng.random() for _ in range(n_answers - 1)]
        masses = [RIGHT_MASS, *((1 - RIGHT_MASS) * each / sum(rest) for each in rest)]
        if max(masses[1:]) < RIGHT_MASS:
            break
    paths = []
    for answer, mass in enumerate(masses):
        n_paths = shape.n_paths * (shape.spread if answer == RIGHT else 1)
        shares = [(number + 1) ** -shape.power for number in range(n_paths)]
        paths += [(answer, number, mass * share / sum(shares)) for number, share in enumerate(shares)]
    return paths


@dataclass(frozen=True, slots=True)
class SampleRow:
    """Errors of a vote of `n` samples and of weights of `n_weighted`, and how often only one of them was right."""

    shape: Distribution
    n: int
    n_weighted: int
    vote: float
    vote_interval: tuple[float, float]
    weighted: float
    weighted_interval: tuple[float, float]
    only_weighted: int
    only_vote: int


def sample_rows(
    n_trials: int, shapes: Sequence[Distribution] = DISTRIBUTIONS, sizes: Sequence[int] = SIZES
) -> list[SampleRow]:
    """The two on the same draws: the weights see the first MOST_NEEDED of what the vote sees."""
    found = []
    for shape in shapes:
        rng, outcomes = random.Random(1), dict[int, list[tuple[bool, bool]]]()
        for _ in range(n_trials):
            paths = paths_of(rng, shape)
            drawn = rng.choices(paths, [probability for *_, probability in paths], k=max(sizes))
            samples = [
                SampledAnswer(at, 9, True, True, answer, (answer, number), math.log(probability))
                for at, (answer, number, probability) in enumerate(drawn)
            ]
            for n in sizes:
                both = chosen("vote", samples[:n]), chosen("weighted", samples[: weighted_size(n)])
                outcomes.setdefault(n, []).append(both)
        found += [sample_row(shape, n, outcomes[n]) for n in sizes]
    return found


def weighted_size(n: int) -> int:
    """How many samples the weights may see where a vote sees `n`."""
    return math.floor(MOST_NEEDED * n + 1e-9)


def chosen(name: str, samples: Sequence[SampledAnswer]) -> bool:
    """Whether a pick keeps the right answer."""
    number = PICKS.get(name).verdict(samples, Rules()).chosen
    assert number is not None
    return samples[number].answer == RIGHT


def sample_row(shape: Distribution, n: int, outcomes: Sequence[tuple[bool, bool]]) -> SampleRow:
    """The errors of both in the same trials."""
    n_trials = len(outcomes)
    n_vote, n_weighted = (sum(not each[which] for each in outcomes) for which in (0, 1))
    return SampleRow(
        shape,
        n,
        weighted_size(n),
        n_vote / n_trials,
        wilson(n_vote, n_trials),
        n_weighted / n_trials,
        wilson(n_weighted, n_trials),
        sum(weighted and not vote for vote, weighted in outcomes),
        sum(vote and not weighted for vote, weighted in outcomes),
    )


def print_tables(rules: Sequence[RuleRow], sizes: Sequence[SampleRow]) -> None:
    """Both as Markdown."""
    print("| wrong answers' length | pick | error | tokens | passes | tokens saved |\n|---|---|---|---|---|---|")
    for row in rules:
        name = f"{row.pick} {row.rules}".strip()
        error, saved = percent(row.error, row.error_interval), percent(row.saved, row.saved_interval)
        print(f"| x{row.ratio:g} | {name} | {error} | {row.tokens:.0f} | {row.passes:.0f} | {saved} |")
    print("\n| paths, power, spread | vote of | error | weighted of | error | only weighted right | only vote right |")
    print("|---|---|---|---|---|---|---|")
    for each in sizes:
        vote, weighted = percent(each.vote, each.vote_interval), percent(each.weighted, each.weighted_interval)
        shape = f"{each.shape.n_paths}, {each.shape.power:g}, {each.shape.spread}"
        counts = f"{each.only_weighted} | {each.only_vote}"
        print(f"| {shape} | {each.n} | {vote} | {each.n_weighted} | {weighted} | {counts} |")


def percent(value: float, interval: tuple[float, float]) -> str:
    """A share with its interval."""
    return f"{value:.1%} ({interval[0]:.1%} to {interval[1]:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--questions", type=int, default=1000, help="of the first table")
    parser.add_argument("--trials", type=int, default=300, help="of the second table")
    parser.add_argument("--json", action="store_true", help="rows as JSON, one a line")
    given = parser.parse_args()
    rules = [row for ratio in RATIOS for row in rule_rows(given.questions, ratio)]
    sizes = sample_rows(given.trials)
    if given.json:
        for row in (*rules, *sizes):
            print(json.dumps(asdict(row)))
    else:
        print_tables(rules, sizes)


if __name__ == "__main__":
    main()
