"""Measures what prompts lose whose text was read elsewhere: after a changed line (`--reuse shifted`), or as modules.

Run from the repository root: `python scripts/measure_reuse.py MODEL QUESTIONS [WAY ...] [--tokens 2048] [--texts 5]
[--scored 64] [--json]`. QUESTIONS is Spec-Bench's file; its articles are the text; text by text, a fact stands a little
deeper in it. Ways: `shifted`: the text was read after another first line; `modules`: it consists of four modules, each
read by itself; `modules@0.9`: at this temperature. The rest of the text, and a question for the fact with its answer,
follow; they are read as usual. Compared with the same prompt read as a whole: perplexity of the rest, KL(exact || way)
of the distributions that predict it, the log probability of the answer, whether greedy finds it, and what was read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.engine.llm import LLM
from edgeinfer.graph.step import Floats
from scripts.long_context.texts import Needle, article_text, encoded, needles, pieces
from scripts.measure_parity import divergences, log_probabilities

FIRST_LINES = ("Today is Monday, the 3rd of March.\n\n", "It is Saturday evening, the 22nd of November 2031.\n\n")
N_MODULES = 4
EXACT, SHIFTED, MODULES = "exact", "shifted", "modules"
WAYS = (SHIFTED, MODULES, f"{MODULES}@0.9")
OTHER_TOKENS = 160
"""Room in a text for what is not of the articles."""
ROWS = 32
"""Tokens of a pass with logits."""


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a text with a fact in it: what is read elsewhere, the rest, and the fact."""

    body: list[int]
    rest: list[int]
    needle: Needle

    @property
    def after(self) -> list[int]:
        """What follows the body."""
        return [*self.rest, *self.needle.question, *self.needle.answer]


@dataclass(slots=True)
class Result:
    """What a way did; `n_read`, `n_prompt`: tokens of all prompts that were read, and all of them."""

    way: str
    n_tokens: int
    logprobs: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    n_found: int = 0
    n_read: int = 0
    n_prompt: int = 0

    @property
    def perplexity(self) -> float:
        return float(np.exp(-np.mean(self.logprobs)))

    def add(self, text: Text, logs: Floats, exact: Floats) -> None:
        """Count the predictions of all that follows a body: log probabilities [T, V]."""
        n_rest, n_answer, after = len(text.rest), len(text.needle.answer), text.after
        own = logs[np.arange(len(after)), after]
        self.logprobs += own[:n_rest].tolist()
        self.kl += divergences(exact[:n_rest], logs[:n_rest]).tolist()
        self.answers.append(float(own[-n_answer:].sum()))
        self.n_found += logs[-n_answer:].argmax(axis=1).tolist() == text.needle.answer


def texts(llm: LLM, given: argparse.Namespace, n_tokens: int) -> list[Text]:
    """Texts with facts ever deeper in them."""
    tokenizer = llm.prompts.tokenizer
    tokens = encoded(tokenizer, article_text(given.questions))
    found = []
    hidden = list(needles(tokenizer, given.texts))[::-1]
    for piece, needle in zip(pieces(tokens, n_tokens, given.texts), hidden, strict=True):
        body = piece[: n_tokens - given.scored - OTHER_TOKENS]
        place, rest = round(needle.depth * len(body)), piece[len(body) : len(body) + given.scored]
        found.append(Text([*body[:place], *needle.fact, *body[place:]], rest, needle))
    return found


def predicted(llm: LLM, prompt: Sequence[Any], after: Sequence[int], result: Result, **options: Any) -> Floats:
    """Log probabilities of what follows a prompt, float32[T, V], after an answer to it has read it."""
    with closing(llm.session()) as session:
        stream = session.complete(prompt, max_tokens=1, temperature=0, **options)
        stream.read()
        assert stream.stats is not None
        result.n_prompt += stream.stats.n_prompt
        result.n_read += stream.stats.n_prompt - stream.stats.n_cached
        with closing(session._cached.branch()) as branch, branch.lock:
            branch.cut(stream.stats.n_prompt - 1)
            tokens, found = [int(prompt[-1]), *after[:-1]], []
            for first in range(0, len(tokens), ROWS):
                part = tokens[first : first + ROWS]
                batch = branch.chain(part, wants_logits=True, n_outputs=len(part))
                found.append(log_probabilities(branch.evaluate(batch)))
                branch.commit(batch, np.arange(len(part), dtype=np.int32))
    return np.concatenate(found)


def after_a_changed_line(llm: LLM, text: Text, exact: Result, shifted: Result) -> None:
    """Measure a text that was read after another first line."""
    old, new = ([*llm.tokenize(line), *text.body] for line in FIRST_LINES)
    expected = predicted(llm, new, text.after, exact, reuse="exact")
    exact.add(text, expected, expected)
    with closing(llm.session()) as session:
        session.complete(old, max_tokens=1, temperature=0).read()
        shifted.add(text, predicted(llm, new, text.after, shifted, reuse="shifted"), expected)


def of_modules(llm: LLM, text: Text, exact: Result, ways: Sequence[Result]) -> None:
    """Measure a text that consists of modules; the last token of the body is read after them."""
    size, tokenizer = -(-len(text.body) // N_MODULES), llm.prompts.tokenizer
    parts = [tokenizer.decode(text.body[first : first + size]) for first in range(0, len(text.body), size)]
    expected: Floats | None = None
    for way in ways:
        temperature = float(way.way.partition("@")[2] or 1)
        modules = [llm.modules.add(f"part{at}", part, temperature=temperature) for at, part in enumerate(parts)]
        last = encoded(tokenizer, "\n")
        if expected is None:
            whole = [*modules[0].prefix, *(token for module in modules for token in module.tokens), *last]
            expected = predicted(llm, whole, text.after, exact)
            exact.add(text, expected, expected)
        way.add(text, predicted(llm, [*modules[0].prefix, *modules, *last], text.after, way), expected)


def measured(given: argparse.Namespace, n_tokens: int, ways: Sequence[str]) -> list[Result]:
    """All ways on texts of one length, each group after the exact reading of its prompts."""
    found = []
    opened = {"device": given.device, "spec": "off", "n_context": n_tokens, "threads": given.threads, "n_sessions": 4}
    if SHIFTED in ways:
        exact, shifted = Result(f"{EXACT} ({SHIFTED})", n_tokens), Result(SHIFTED, n_tokens)
        with edgeinfer.load(given.model, reuse=SHIFTED, **opened) as llm:
            for text in texts(llm, given, n_tokens):
                after_a_changed_line(llm, text, exact, shifted)
        found += [exact, shifted]
    others = [Result(way, n_tokens) for way in ways if way.startswith(MODULES)]
    if others:
        exact = Result(f"{EXACT} ({MODULES})", n_tokens)
        with edgeinfer.load(given.model, **opened) as llm:
            for text in texts(llm, given, n_tokens):
                of_modules(llm, text, exact, others)
        found += [exact, *others]
    return found


def table(results: Sequence[Result]) -> str:
    """A row for each way."""
    lines = [f"{'way':<18}{'read':>12}{'perplexity':>12}{'mean KL':>10}{'99 %':>9}{'facts':>8}{'log prob.':>11}"]
    for each in results:
        cells = f"{each.way:<18}{f'{each.n_read}/{each.n_prompt}':>12}{each.perplexity:>12.3f}{np.mean(each.kl):>10.4f}"
        cells += f"{np.quantile(each.kl, 0.99):>9.3f}{f'{each.n_found}/{len(each.answers)}':>8}"
        lines.append(f"{cells}{np.mean(each.answers):>11.2f}")
    return "\n".join(lines)


def record(result: Result) -> dict[str, object]:
    """A result as JSON."""
    told = {name: value for name, value in asdict(result).items() if name not in ("logprobs", "kl")}
    kl = {"mean_kl": float(np.mean(result.kl)), "kl_99": float(np.quantile(result.kl, 0.99))}
    return {**told, "n_scored": len(result.kl), "perplexity": result.perplexity, **kl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"default: {' '.join(WAYS)}")
    parser.add_argument("--tokens", default="2048,4096", help="lengths of texts, with commas between them")
    parser.add_argument("--texts", type=int, default=5, help="texts of each length")
    parser.add_argument("--scored", type=int, default=64, help="last tokens of a text that are scored")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="worker threads; default: one per usable core")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_intermixed_args()
    ways, records = given.ways or WAYS, []
    if unknown := [way for way in ways if way.partition("@")[0] not in (SHIFTED, MODULES)]:
        parser.error(f"there is no way {unknown[0]!r}; there are: {', '.join(WAYS)}")
    for n_tokens in map(int, given.tokens.split(",")):
        results = measured(given, n_tokens, ways)
        records += [record(each) for each in results]
        if not given.json:
            print(f"{given.model.name}, {n_tokens} tokens, {len(results[0].kl)} scored\n{table(results)}\n", flush=True)
    if given.json:
        print(json.dumps(records))


if __name__ == "__main__":
    main()
