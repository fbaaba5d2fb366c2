"""Measures what two models that write one answer cost and give: time, who writes what, and how it differs.

Run from the repository root: `python scripts/measure_two_models.py LARGE SMALL QUESTIONS [RULE ...] [--questions 4]
[--tokens 96] [--temperature 0] [--json]`. QUESTIONS is Spec-Bench's file; its first questions of one turn are answered.
A RULE is what `--hand-over` takes. Compared with the large model alone, with the small one as its draft model, which is
exact, and with the small one alone: tokens a second with the time to read the prompt, passes that gave tokens per 100
of them, the share that the small model wrote, how often the large one took over and how many tokens of the small one
were dropped, per 100 tokens; the perplexity of the answers by the large model; and how many of the first tokens of the
answers are those of the large model alone.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import edgeinfer
from edgeinfer.engine.llm import LLM

RULES = ("bild=0.6,3", "bild=0.6,inf", "bild=0.3,1", "entropy=1.5", "steps=7")
LARGE, DRAFTS, SMALL = "large alone", "large, small drafts", "small alone"


@dataclass(frozen=True, slots=True)
class Figures:
    """What the answers of one way to write were like."""

    way: str
    tok_s: float
    n_tokens: int
    passes: float
    small_share: float
    taken_over: float
    dropped: float
    perplexity: float
    n_same: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of an answer, and numbers of it."""

    tokens: tuple[int, ...]
    seconds: float
    n_passes: int
    n_small: int = 0
    n_handed_over: int = 0
    n_dropped: int = 0


def asked(llm: LLM, question: str, given: argparse.Namespace) -> Answer:
    """The answer to a question."""
    started = time.perf_counter()
    stream = llm.chat(
        [{"role": "user", "content": question}], max_tokens=given.tokens, temperature=given.temperature, seed=1
    )
    stream.read()
    seconds, stats = time.perf_counter() - started, stream.stats
    assert stats is not None
    both = None if stats.draft is None else stats.draft.shared_writing
    counts = () if both is None else (both.n_small, both.n_handed_over, both.n_dropped)
    return Answer(stream.tokens, seconds, stats.steps, *counts)


def surprise(llm: LLM, question: str, tokens: Sequence[int]) -> float:
    """Negative log probability of an answer by a model."""
    prompt = llm.prompts.chat([{"role": "user", "content": question}], {}, lambda _: ()).prompt
    scored = llm.logprobs([*prompt, *tokens]).logprobs[len(prompt) - 1 :]
    return -math.fsum(each.logprob for each in scored)


def figures(way: str, answers: Sequence[Answer], alone: Sequence[Answer], surprises: Sequence[float]) -> Figures:
    """The numbers of all answers together."""
    n_tokens = sum(len(each.tokens) for each in answers)
    n_same = 0
    for answer, own in zip(answers, alone, strict=True):
        pairs = zip(answer.tokens, own.tokens, strict=False)
        n_same += next((n for n, (one, other) in enumerate(pairs) if one != other), len(answer.tokens))
    return Figures(
        way,
        n_tokens / sum(each.seconds for each in answers),
        n_tokens,
        100 * sum(each.n_passes for each in answers) / n_tokens,
        sum(each.n_small for each in answers) / n_tokens,
        100 * sum(each.n_handed_over for each in answers) / n_tokens,
        100 * sum(each.n_dropped for each in answers) / n_tokens,
        math.exp(math.fsum(surprises) / n_tokens),
        n_same,
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("large")
    parser.add_argument("small")
    parser.add_argument("questions_file", type=Path)
    parser.add_argument("rules", nargs="*", default=RULES)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    lines = map(json.loads, given.questions_file.read_text(encoding="utf-8").splitlines())
    questions = [line["turns"][0] for line in lines if len(line["turns"]) == 1 and len(line["turns"][0]) < 600]
    questions = questions[: given.questions]
    ways: dict[str, dict[str, object]] = {LARGE: {"spec": "off"}, DRAFTS: {"draft_from": [given.small]}}
    ways |= {rule: {"small_model": given.small, "hand_over": rule} for rule in given.rules or RULES}
    ways[SMALL] = {"spec": "off"}
    found = dict[str, list[Answer]]()
    for way, options in ways.items():
        path = given.small if way == SMALL else given.large
        with edgeinfer.load(path, device="cpu", n_context=2048, **options) as llm:
            asked(llm, "Hi", argparse.Namespace(**{**vars(given), "tokens": 8}))  # memory is touched
            found[way] = [asked(llm, question, given) for question in questions]
    with edgeinfer.load(given.large, device="cpu", n_context=2048, spec="off") as llm:
        told = {
            way: [surprise(llm, *pair) for pair in zip(questions, (each.tokens for each in answers), strict=True)]
            for way, answers in found.items()
        }
    rows = [figures(way, answers, found[LARGE], told[way]) for way, answers in found.items()]
    if given.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        names = ("", "tok/s", "tokens", "passes", "small", "taken over", "dropped", "perplexity", "same")
        print("".join(f"{name:>12}" if place else f"{name:22}" for place, name in enumerate(names)))
        for row in rows:
            print(
                f"{row.way:22}{row.tok_s:12.1f}{row.n_tokens:12}{row.passes:12.1f}{row.small_share:12.0%}"
                f"{row.taken_over:12.1f}{row.dropped:12.1f}{row.perplexity:12.2f}{row.n_same:12}"
            )


if __name__ == "__main__":
    main()
