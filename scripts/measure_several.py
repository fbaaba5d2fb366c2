"""Measures answers written side by side: tokens per second of N answers to one question against those of one.

Run:  python scripts/measure_several.py MODEL [--answers 2,4,8] [--tokens 128] [--rounds 5] [--spec auto|off]

Every round asks questions of its own, so that no text was seen before; all numbers of answers alternate. All answers
run to the limit. Times are those of writing, without the prompt. Also told: the tokens of a pass, and how busy the
cores were; nothing else should run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import cycle

import psutil

import edgeinfer
from edgeinfer.engine.llm import LLM

THINGS = (
    *("a lighthouse", "a railway station", "an old bridge", "a glass of water", "the sea at night", "a kitchen"),
    *("a market", "a bicycle", "a library", "the first snow", "a garden wall", "an orchard", "a radio", "a map"),
    *("a violin", "a harbour", "a winter coat", "a train journey", "a mountain path", "a clock tower", "a bakery"),
    *("a forest fire", "a school yard", "a telescope", "a fishing boat", "a letter", "a piano", "a desert", "a well"),
)


def seconds_of(llm: LLM, question: str, n: int, n_tokens: int, seed: int) -> tuple[float, float]:
    """Tokens per second of n answers together, from the first token on, and tokens per pass of one of them."""
    options = {"max_tokens": n_tokens, "seed": seed, "temperature": 0.8, "ignore_eos": True}
    several = llm.several([{"role": "user", "content": question}], n, pick="shortest", enough=n, **options)
    first_s, n_first = 0.0, 0
    for _ in several:
        if not first_s and all(answer.tokens for answer in several.answers):
            first_s, n_first = time.perf_counter(), several.n_generated
    took_s = time.perf_counter() - first_s
    stats = [answer.stats for answer in several.answers if answer.stats is not None]
    return (several.n_generated - n_first) / took_s, statistics.mean(n_tokens / max(1, each.steps) for each in stats)


def main() -> None:
    """Print a line for each round, and the ratio of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--answers", default="2,4,8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spec", default="auto")
    given = parser.parse_args()
    numbers = [1, *(int(each) for each in given.answers.split(","))]
    things = cycle(THINGS)
    found: dict[int, list[float]] = {n: [] for n in numbers}
    with edgeinfer.load(given.model, spec=given.spec, history=False) as llm:
        seconds_of(llm, f"Describe {next(things)}.", max(numbers), 32, 1)
        for round_ in range(given.rounds):
            for n, rates in found.items():
                psutil.cpu_percent()
                question = f"Write story number {round_} about {next(things)}."
                rate, per_pass = seconds_of(llm, question, n, given.tokens, 10 * round_)
                rates.append(rate)
                busy = psutil.cpu_percent()
                print(f"{n:2} answers {rate:8.1f} tok/s, {per_pass:.2f} a pass, cores busy {busy:.0f} %", flush=True)
    one = statistics.median(found[1])
    for n, rates in found.items():
        ratios = [rate / single for rate, single in zip(rates, found[1], strict=True)]
        rate, spread = statistics.median(rates), f"rounds {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{n:2} answers: {rate:.1f} tok/s, {rate / one:.2f} times ({spread})")


if __name__ == "__main__":
    main()
