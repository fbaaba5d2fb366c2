"""Compares answers with and without drafts, token by token: drafts may change how long an answer takes, nothing else.

Run: `python scripts/compare_drafted_text.py MODEL QUESTIONS [--sampled] [--parallel N] [--tokens 96] [--kept FILE]
[--minutes N]` and with what may be drafted in other ways: --draft-from, --ram, --kv, --spec. QUESTIONS is a file
of JSON lines with "turns", of which the first is asked. Every question is answered alone and without drafts, with all
weights in memory; then with drafts: one after another in one session, or with --parallel so many at a time. Answers are
the likeliest tokens, or with --sampled what `edgeinfer chat` gives with its own settings, each with a seed of its own.
In FILE answers are kept, so that a run of --minutes goes on where the last one ended. Exits 1 if an answer differs or
nothing was drafted, 3 if some are not answered yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.scheduler.batcher import Prompt
from edgeinfer.engine.scheduler.stats import Stats

AT_ONCE = 16
"""Answers that a batch gives between two looks at the clock, for each one of its places."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; `way`: how it was given, `number`: of its question.

    n_passes: passes that it took part in; drafted, accepted: tokens by draft source.
    """

    way: str
    number: int
    tokens: list[int]
    text: str
    ends: str
    n_passes: int
    drafted: dict[str, int]
    accepted: dict[str, int]


def answered(way: str, number: int, tokens: Sequence[int], text: str, stats: Stats | None) -> Answer:
    """An answer from what it gave."""
    assert stats is not None
    sources = {} if stats.draft is None else stats.draft.sources
    drafted = {name: each.proposed for name, each in sources.items() if each.proposed}
    accepted = {name: each.accepted for name, each in sources.items() if each.accepted}
    return Answer(way, number, list(tokens), text, stats.finish_reason, stats.steps, drafted, accepted)


class Answers:
    """All answers so far; those of a file are read, and new ones are appended to it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        found = [Answer(**json.loads(line)) for line in lines]
        self._known = {(each.way, each.number): each for each in found}

    def of(self, way: str) -> dict[int, Answer]:
        """The answers of a way by the number of their question."""
        return {number: each for (known, number), each in self._known.items() if known == way}

    def add(self, answer: Answer) -> None:
        """Add one."""
        self._known[answer.way, answer.number] = answer
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer)) + "\n")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The questions by number, and how they are answered."""

    questions: dict[int, str]
    tokens: int
    sampled: bool
    ends_s: float

    def options(self, number: int) -> Options:
        """Options of an answer."""
        own: Options = {"seed": number + 1} if self.sampled else {"temperature": 0.0}
        return {**own, "max_tokens": self.tokens}

    def run(self, llm: LLM, way: str, answers: Answers, parallel: int) -> None:
        """Answer the questions that are left, until time is over. `parallel` 0: in one session."""
        known = answers.of(way)
        left = [number for number in self.questions if number not in known]
        for answer in self._alone(llm, way, left) if not parallel else self._together(llm, way, left, parallel):
            answers.add(answer)

    def _alone(self, llm: LLM, way: str, left: Sequence[int]) -> Iterator[Answer]:
        with llm.session() as session:
            for number in left:
                if time.monotonic() > self.ends_s:
                    return
                stream = session.chat(self._messages(number), **self.options(number))
                stream.read()
                yield answered(way, number, stream.tokens, stream.text, stream.stats)

    def _together(self, llm: LLM, way: str, left: Sequence[int], parallel: int) -> Iterator[Answer]:
        size = AT_ONCE * parallel
        for part in (left[start : start + size] for start in range(0, len(left), size)):
            if time.monotonic() > self.ends_s:
                return
            prompts = [Prompt(self._messages(number), self.options(number)) for number in part]
            stream = llm.batch(prompts, parallel=parallel)
            for each in stream:
                if each.error is not None:
                    raise each.error
                yield answered(way, part[each.number], each.tokens, each.text, each.stats)
            counts = stream.counts
            print(
                f"  a batch of {len(part)}: {counts.passes} passes, {counts.n_accepted} of {counts.n_drafted} drafted"
            )

    def _messages(self, number: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.questions[number]}]


def difference(plain: Answer, drafted: Answer) -> str | None:
    """Where two answers to a question differ."""
    if (plain.tokens, plain.text, plain.ends) == (drafted.tokens, drafted.text, drafted.ends):
        return None
    place = n_common(plain.tokens, drafted.tokens)
    told = (f"{each.tokens[place : place + 4]} to its {each.ends} at {len(each.tokens)}" for each in (plain, drafted))
    return f"question {plain.number} differs at token {place}: {', with drafts '.join(told)}"


def report(name: str, plain: dict[int, Answer], drafted: dict[int, Answer], numbers: Collection[int]) -> int:
    """Print what was compared; returns the exit status."""
    both = [number for number in numbers if number in plain and number in drafted]
    found = [drafted[number] for number in both]
    pairs = ((plain[number], drafted[number]) for number in both)
    differences = [where for pair in pairs if (where := difference(*pair)) is not None]
    n_drafted, accepted = sum(sum(each.drafted.values()) for each in found), Counter[str]()
    for each in found:
        accepted.update(each.accepted)
    told = ", ".join(f"{source} {n}" for source, n in accepted.most_common())
    print(
        f"{name}: {len(both)} of {len(numbers)} answers, {sum(len(each.tokens) for each in found)} tokens in "
        f"{sum(each.n_passes for each in found)} passes, {accepted.total()} of {n_drafted} drafted tokens accepted "
        f"({told}), {len(differences)} answers differ"
    )
    print(*differences, sep="\n", end="\n" if differences else "")
    if differences or (both and not accepted.total()):
        return 1
    return 0 if len(both) == len(numbers) else 3


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--sampled", action="store_true", help="as chat draws, not the likeliest tokens")
    parser.add_argument("--parallel", type=int, default=0, help="answers at a time; 0: one after another in a session")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--count", type=int, default=240, help="questions, evenly spread")
    parser.add_argument("--characters", type=int, help="most characters of a question")
    parser.add_argument("--draft-from", action="append", default=[], help="also draft from a file, a model or a head")
    parser.add_argument("--ram", help="memory for weights; the rest is streamed from disk")
    parser.add_argument("--kv", default="f16", help="kind of the KV cache, both ways")
    parser.add_argument("--spec", default="on", help="on, or tokens of every pass")
    parser.add_argument("--ctx", type=int, default=2048, help="context in tokens")
    parser.add_argument("--threads", type=int, help="worker threads")
    parser.add_argument("--kept", type=Path, help="a file of answers, which is read and added to")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no answers after so long")
    return parser.parse_args()


def main() -> int:
    """Read the arguments, answer, compare."""
    given = arguments()
    lines = list(enumerate(given.questions.read_text(encoding="utf-8").splitlines()))
    lines = lines[:: max(1, len(lines) // given.count)][: given.count]
    led = {number: json.loads(line)["turns"][0][: given.characters] for number, line in lines}
    comparison = Comparison(led, given.tokens, given.sampled, time.monotonic() + 60 * given.minutes)
    kind = f"{given.model.stem}, {'sampled' if given.sampled else 'greedy'}, {given.tokens} tokens, kv {given.kv}"
    kind += "" if given.characters is None else f", {given.characters} characters"
    sources = "".join(f", from {Path(source).name}" for source in given.draft_from)
    streamed = "" if given.ram is None else f", {given.ram} of memory"
    name = f"{kind}, spec {given.spec}, {given.parallel or 'not'} in a batch{sources}{streamed}"
    answers = Answers(given.kept)
    common: dict[str, Any] = {"n_context": given.ctx, "kv": given.kv, "threads": given.threads, "device": "cpu"}
    drafting: dict[str, Any] = {"draft_from": given.draft_from, "ram_bytes": given.ram}
    spec: Any = int(given.spec) if given.spec.isdecimal() else given.spec
    if led.keys() - answers.of(kind).keys():
        with load(given.model, spec="off", **common) as llm:
            comparison.run(llm, kind, answers, 0)
    if led.keys() - answers.of(name).keys() and time.monotonic() < comparison.ends_s:
        with load(given.model, spec=spec, n_sessions=max(1, given.parallel), **common, **drafting) as llm:
            print(*llm.info.notices, sep="\n")
            comparison.run(llm, name, answers, given.parallel)
    return report(name, answers.of(kind), answers.of(name), led.keys())


if __name__ == "__main__":
    sys.exit(main())
