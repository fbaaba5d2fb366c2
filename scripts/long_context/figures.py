"""What the scripts here count of a mode after long texts, the options that they share, and how they print.

In: log probabilities of a mode and of the exact model. Out: `Figures`, rows of a table, JSON. Knows no models.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from edgeinfer.graph.step import Floats
from scripts.long_context.texts import Needle
from scripts.measure_parity import divergences


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that was asked for: how deep it stood, how likely its tokens were, whether greedy decoding finds it."""

    depth: float
    logprob: float
    is_found: bool


@dataclass(slots=True)
class Figures:
    """What a mode did after texts of so many tokens. `logprobs`, `kl`: by scored token, in nats. `facts`: by text.

    `n_seen`: positions of its budget or window, 0 for all. `n_read`: those of the `n_prompt` tokens of all prompts
    that were read. Scripts leave at 0 what they do not count.
    """

    mode: str
    n_tokens: int
    n_seen: int = 0
    n_read: int = 0
    n_prompt: int = 0
    logprobs: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return float(np.exp(-np.mean(self.logprobs)))

    @property
    def fact_logprob(self) -> float:
        """The mean log probability of a fact."""
        return float(np.mean([fact.logprob for fact in self.facts]))

    @property
    def n_found(self) -> int:
        return sum(fact.is_found for fact in self.facts)

    def score(self, exact: Floats, logs: Floats, following: Sequence[int]) -> None:
        """Count predictions of tokens: log probabilities of both, each [T, V]."""
        self.logprobs += logs[np.arange(len(logs)), following].tolist()
        self.kl += divergences(exact, logs).tolist()

    def ask(self, needle: Needle, logs: Floats) -> Fact:
        """Count a fact, by the log probabilities from which its tokens are chosen, [T, V]."""
        logprob = float(logs[np.arange(len(logs)), needle.answer].sum())
        fact = Fact(needle.depth, logprob, logs.argmax(axis=1).tolist() == needle.answer)
        self.facts.append(fact)
        return fact

    def record(self) -> dict[str, object]:
        """As JSON."""
        counts = {name: getattr(self, name) for name in ("mode", "n_tokens", "n_seen", "n_read", "n_prompt")}
        kl = {"mean_kl": float(np.mean(self.kl)), "kl_99": float(np.quantile(self.kl, 0.99))}
        scored = {"n_scored": len(self.kl), "perplexity": self.perplexity, **kl}
        return {**counts, **scored, "facts": [asdict(fact) for fact in self.facts]}


def table(results: Sequence[Figures]) -> str:
    """A row for each mode."""
    has_read = any(each.n_prompt for each in results)
    counted = "read" if has_read else "sees"
    lines = [f"{'mode':<24}{counted:>12}{'perplexity':>12}{'mean KL':>10}{'99 %':>9}{'facts':>8}{'log prob.':>11}"]
    for each in results:
        count = f"{each.n_read}/{each.n_prompt}" if has_read else each.n_seen or "all"
        cells = f"{each.mode:<24}{count:>12}{each.perplexity:>12.3f}{np.mean(each.kl):>10.4f}"
        cells += f"{np.quantile(each.kl, 0.99):>9.3f}"
        if each.facts:
            cells += f"{f'{each.n_found}/{len(each.facts)}':>8}{each.fact_logprob:>11.2f}"
        lines.append(cells)
    return "\n".join(lines)


def text_arguments(description: str | None, tokens: str, texts: int, scored: int) -> argparse.ArgumentParser:
    """A parser of the options that these scripts share, with defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path, help="Spec-Bench's file, whose articles are the text")
    parser.add_argument("--tokens", default=tokens, help="lengths of texts, with commas between them")
    parser.add_argument("--texts", type=int, default=texts, help="texts of each length")
    parser.add_argument("--scored", type=int, default=scored, help="last tokens of a text that are scored")
    parser.add_argument("--threads", type=int, help="worker threads; default: one per usable core")
    parser.add_argument("--json", action="store_true")
    return parser


def show(given: argparse.Namespace, measured: Callable[[int], Sequence[Figures]]) -> None:
    """Measure texts of each length and print tables, or all as JSON."""
    records = []
    for n_tokens in map(int, given.tokens.split(",")):
        results = measured(n_tokens)
        records += [each.record() for each in results]
        if not given.json:
            print(f"{given.model.name}, {n_tokens} tokens, {len(results[0].kl)} scored\n{table(results)}\n", flush=True)
    if given.json:
        print(json.dumps(records))
