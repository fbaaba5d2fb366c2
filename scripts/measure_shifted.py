"""Measures what `--reuse shifted` costs and saves on a real model: a line at the top of a long system prompt changes.

Run from the repository root: `python scripts/measure_shifted.py [MODEL] [--questions FILE] [--kv KIND] [--cases N]`.
MODEL is a path or the name of a model in the store (default: the starter model); FILE has Spec-Bench's questions
(JSON lines with "turns"), whose texts make the system prompts. For each way of reusing: tokens of the prompt that are
read, KL(anew || reused) of the next-token distributions over ANSWER greedy tokens of the exact answer, the share of
places with the same likeliest token, and how many tokens of the reused greedy answer are those of the exact one. The
last row is the distance that the changed line makes: the answer to the old prompt.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

from edgeinfer import load
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.scheduler.matching_runs import matching_runs
from edgeinfer.graph.step import Floats, Int32s
from scripts.measure_parity import divergences, log_probabilities, model_path

QUESTIONS = Path("spec_bench/questions.jsonl")
ANSWER = 32
REREADS = (0, 16, 64)
LINES = (
    ("Today is Monday, 3 November 2025.", "Today is Saturday, 29 November 2025, and it is snowing."),
    ("The user is called Alice.", "The user is called Bartholomew Montgomery."),
    ("You are a helpful assistant. You answer in English.", "You are a pirate. You answer as a pirate would."),
    (
        "Working directory: /home/alice/src/parser",
        "Working directory: /tmp/build/release-4 (branch main, 3 files changed)",
    ),
    ("", "Session 41 began 12 minutes ago; the user has asked 3 questions."),
)
ASKED = (
    "Summarize the first document in two sentences.",
    "Which people are named in the documents?",
    "What do you know about me and about today?",
    "Write a short greeting, then tell me what the last document is about.",
)


@dataclass(slots=True)
class Results:
    """What was found of one way of reusing."""

    kl: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    n_same: list[int] = field(default_factory=list)
    n_read: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Unturned:
    """Moves keys as they are, to show what turning them is for."""

    def __init__(self, turner: object) -> None:
        self._turner = turner

    def turn_slots(self, sources: Int32s, targets: Int32s, distance: int, n_unseen: int = 0) -> None:
        self._turner.turn_slots(sources, targets, 0, n_unseen)  # type: ignore[attr-defined]


def read(cached: CachedSequence, tokens: Sequence[int]) -> None:
    """Read tokens after what is cached."""
    for first in range(0, len(tokens), cached.max_tokens):
        batch = cached.chain(tokens[first : first + cached.max_tokens], wants_logits=False)
        cached.evaluate(batch)
        cached.commit(batch, np.arange(len(batch.tokens), dtype=np.int32))


def distributions(cached: CachedSequence, tokens: Sequence[int]) -> Floats:
    """Log probabilities after each of the tokens, which are cached too: float32[n, V]."""
    batch = cached.chain(tokens, wants_logits=True, n_outputs=len(tokens))
    logs = log_probabilities(cached.evaluate(batch))
    cached.commit(batch, np.arange(len(tokens), dtype=np.int32))
    return logs


def greedy(cached: CachedSequence, last: int, n: int) -> list[int]:
    """The likeliest tokens, one after another; the cache is as before then."""
    tokens, n_before = [last], cached.n_cached
    for _ in range(n):
        tokens.append(int(distributions(cached, tokens[-1:])[0].argmax()))
    cached.cut(n_before)
    return tokens[1:]


def reuse(cached: CachedSequence, old: CachedSequence, prompt: list[int], reread: int) -> int:
    """Read a prompt but its last token, with what an older one has; returns how many tokens were read."""
    n_same, n_read = n_common(list(old.tokens), prompt), 0
    cached.share(old, n_same)
    for run in matching_runs(prompt, n_same, len(prompt) - 1, [old.tokens]):
        hole = prompt[cached.n_cached : run.start + reread]
        read(cached, hole)
        n_read += len(hole)
        assert cached.append_shifted(old, run.source + reread, run.n_tokens - reread)
    rest = prompt[cached.n_cached : -1]
    read(cached, rest)
    return n_read + len(rest) + 1


def measured(llm: LLM, old: list[int], new: list[int], results: dict[str, Results]) -> None:
    """One case: all ways of reusing the old prompt for the new one."""
    pool = llm._pool
    shifted = pool.executor.capabilities.shifted
    assert shifted is not None
    whole, donor = pool.open(), pool.open()
    started = time.perf_counter()
    read(whole, new[:-1])
    seconds = time.perf_counter() - started
    answer = greedy(whole, new[-1], ANSWER)
    expected = distributions(whole, [new[-1], *answer[:-1]])
    note(results["anew"], expected, expected, (answer, answer), len(new), seconds)
    read(donor, old[:-1])
    turner = shifted._turner
    ways = [(f"shifted, {n} read again", n, turner) for n in REREADS]
    for name, reread, used in (*ways, ("shifted, keys not turned", REREADS[1], Unturned(turner))):
        shifted._turner, cached = used, pool.open()
        started = time.perf_counter()
        n_read = reuse(cached, donor, new, reread)
        seconds = time.perf_counter() - started
        shifted._turner = turner
        own = greedy(cached, new[-1], ANSWER)
        found = distributions(cached, [new[-1], *answer[:-1]])
        note(results[name], expected, found, (answer, own), n_read, seconds)
        cached.close()
    own = greedy(donor, old[-1], ANSWER)
    note(results["the old prompt"], expected, distributions(donor, [old[-1], *answer[:-1]]), (answer, own), 0, 0.0)
    whole.close()
    donor.close()


def note(
    results: Results, expected: Floats, found: Floats, answers: tuple[list[int], list[int]], n_read: int, seconds: float
) -> None:
    """Add one case to the results of a way."""
    results.kl += divergences(expected, found).tolist()
    results.same += (expected.argmax(axis=1) == found.argmax(axis=1)).tolist()
    results.n_same.append(n_common(*answers))
    results.n_read.append(n_read)
    results.seconds.append(seconds)


def prompts(llm: LLM, questions: Path, n_cases: int) -> list[tuple[list[int], list[int]]]:
    """Prompts before and after a line has changed, as tokens."""
    texts = [json.loads(line)["turns"][0] for line in questions.read_text().splitlines()]
    documents = [text for text in texts if len(text) > 2000]
    found = []
    for number, (lines, asked) in enumerate(list(product(LINES, ASKED))[:n_cases]):
        chosen = [documents[(2 * number + place) % len(documents)] for place in range(2)]
        body = "\n\n".join(f"Document {place}:\n{document}" for place, document in enumerate(chosen, 1))
        pair = []
        for line in lines:
            system = "\n".join(["You help with documents.", *([line] if line else []), "Be brief and exact.", "", body])
            messages = [{"role": "system", "content": system}, {"role": "user", "content": asked}]
            pair.append(list(llm.prompts.chat(messages, {}).prompt))
        found.append((pair[0], pair[1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and gain of reuse after a changed line.")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--cases", type=int, default=len(LINES) * len(ASKED))
    options = parser.parse_args()
    names = ("anew", *(f"shifted, {n} read again" for n in REREADS), "shifted, keys not turned", "the old prompt")
    results = {name: Results() for name in names}
    with load(model_path(options.model), device="cpu", spec="off", kv=options.kv, reuse="shifted", n_sessions=3) as llm:
        cases = prompts(llm, options.questions, options.cases)
        lengths = [len(new) for _, new in cases]
        print(f"{llm.info.name}, kv {options.kv}, {len(cases)} prompts of {min(lengths)} to {max(lengths)} tokens")
        for number, (old, new) in enumerate(cases):
            measured(llm, old, new, results)
            print(f"{number + 1} of {len(cases)}", flush=True)
    heads = f"{'mean KL':>10}{'median':>10}{'99 %':>10}{'same top':>10}{'same of ' + str(ANSWER):>12}"
    print(f"{'':26}{'read':>7}{'s':>7}{heads}")
    for name, each in results.items():
        kl = np.array(each.kl)
        print(
            f"{name:26}{np.mean(each.n_read):7.0f}{np.mean(each.seconds):7.2f}{kl.mean():10.2e}{np.median(kl):10.2e}"
            f"{np.quantile(kl, 0.99):10.2e}{np.mean(each.same):10.1%}{np.mean(each.n_same):12.1f}"
        )


if __name__ == "__main__":
    main()
