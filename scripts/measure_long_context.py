"""Measures what each way to keep less of a long context costs: perplexity, divergence, and facts found in the text.

Run from the repository root: `python scripts/measure_long_context.py MODEL QUESTIONS [MODE ...] [--tokens 2048,8192]
[--texts 4] [--scored 128] [--depths 10] [--json]`. QUESTIONS is Spec-Bench's file; its articles are the text. A mode is
what would be given to `edgeinfer run`, such as `kv=20%`, `q8q4` or `0.1`, or a plain window for comparison, such as
`window=20%` (scripts/long_context/modes.py). Prompts are read in full, as answers have them; what is scored is decoded
after them one token at a time in the mode:
- perplexity of the last tokens of each text, and KL(exact || mode) of the distributions that predict them;
- a fact at each of several depths of a text, asked for at its end: the log probability of the answer's tokens, and
  whether each is the likeliest, so that greedy decoding finds it. Question and answer are decoded in the mode.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from edgeinfer.graph.step import Floats
from scripts.long_context.modes import EXACT, USUAL, Mode
from scripts.long_context.reader import Reader
from scripts.long_context.texts import Needle, article_text, encoded, needles, pieces
from scripts.measure_parity import divergences, log_probabilities


@dataclass(frozen=True, slots=True)
class Found:
    """A fact that was asked for: how deep it stood, how likely its tokens were, and whether greedy finds it."""

    depth: float
    logprob: float
    is_found: bool


@dataclass(slots=True)
class Result:
    """What a mode did after texts of so many tokens; `n_seen`: positions of its budget or window, 0 for all.

    `logprobs`, `kl`: by scored token, in nats. `needles`: by depth.
    """

    mode: str
    n_tokens: int
    n_seen: int
    logprobs: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    needles: list[Found] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return float(np.exp(-np.mean(self.logprobs)))

    @property
    def needle_logprob(self) -> float:
        """The mean log probability of an answer."""
        return float(np.mean([found.logprob for found in self.needles]))

    @property
    def n_found(self) -> int:
        return sum(found.is_found for found in self.needles)


class Measurement:
    """All modes on texts of one length."""

    def __init__(self, given: argparse.Namespace, n_tokens: int, modes: Sequence[Mode]) -> None:
        self._given, self._n_tokens = given, n_tokens
        self._modes = modes
        self._exact: list[Floats] = []
        """Log probabilities of the exact model, by text."""
        self.results = {mode: Result(mode.name, n_tokens, mode.budget(n_tokens)) for mode in modes}

    def run(self) -> list[Result]:
        """Measure all modes, those with the same opening on the same reading of the text."""
        for opening in dict.fromkeys(mode.opening for mode in self._modes):
            modes = [mode for mode in self._modes if mode.opening == opening]
            device = self._given.device, self._given.threads
            with Reader(self._given.model, self._n_tokens, opening, *device) as reader:
                text = encoded(reader.tokenizer, article_text(self._given.questions))
                self._score(reader, text, modes)
                self._seek(reader, text, modes)
        return [self.results[mode] for mode in self._modes]

    def _score(self, reader: Reader, text: Sequence[int], modes: Sequence[Mode]) -> None:
        """Perplexity and divergence at the end of each text."""
        for number, piece in enumerate(pieces(text, self._n_tokens, self._given.texts)):
            n_read = len(piece) - self._given.scored - 1
            reader.read([*reader.lead, *piece[len(reader.lead) : n_read]])
            for mode in modes:
                logs = log_probabilities(reader.decoded(piece[n_read:-1], mode))
                if mode.name == EXACT:
                    self._exact.append(logs)
                result, expected = self.results[mode], self._exact[number]
                result.logprobs += logs[np.arange(len(logs)), piece[n_read + 1 :]].tolist()
                result.kl += divergences(expected, logs).tolist()
                self._tell(f"text {number + 1}, {mode.name}: perplexity so far {result.perplexity:.3f}")

    def _seek(self, reader: Reader, text: Sequence[int], modes: Sequence[Mode]) -> None:
        """Ask for a fact at each depth. The deepest comes first: what stands before the next one is read already."""
        n_same = 0
        for needle in needles(reader.tokenizer, self._given.depths) if self._given.depths else ():
            n_hay = self._n_tokens - len(needle.fact) - len(needle.question) - len(needle.answer)
            place, hay = round(needle.depth * n_hay), [*reader.lead, *text[len(reader.lead) : n_hay]]
            reader.read([*hay[:place], *needle.fact, *hay[place:]], min(n_same, place))
            n_same = place
            for mode in modes:
                found = sought(reader, needle, mode)
                self.results[mode].needles.append(found)
                self._tell(f"depth {needle.depth:.2f}, {mode.name}: {found.logprob:.2f}")

    def _tell(self, said: str) -> None:
        print(f"{self._n_tokens} tokens, {said}", file=sys.stderr, flush=True)


def sought(reader: Reader, needle: Needle, mode: Mode) -> Found:
    """Ask for a fact in the text that was read."""
    logs = log_probabilities(reader.decoded([*needle.question, *needle.answer[:-1]], mode))
    logs = logs[len(needle.question) - 1 :]
    logprob = float(logs[np.arange(len(logs)), needle.answer].sum())
    return Found(needle.depth, logprob, logs.argmax(axis=1).tolist() == needle.answer)


def table(results: Sequence[Result]) -> str:
    """A row for each mode."""
    lines = [f"{'mode':<16}{'sees':>7}{'perplexity':>12}{'mean KL':>10}{'99 %':>9}{'facts':>8}{'log prob.':>11}"]
    for each in results:
        cells = f"{each.mode:<16}{each.n_seen or 'all':>7}{each.perplexity:>12.3f}{np.mean(each.kl):>10.4f}"
        cells += f"{np.quantile(each.kl, 0.99):>9.3f}"
        if each.needles:
            cells += f"{f'{each.n_found}/{len(each.needles)}':>8}{each.needle_logprob:>11.2f}"
        lines.append(cells)
    return "\n".join(lines)


def record(result: Result) -> dict[str, object]:
    """A result as JSON."""
    kl = {"mean_kl": float(np.mean(result.kl)), "kl_99": float(np.quantile(result.kl, 0.99))}
    told = {"mode": result.mode, "n_tokens": result.n_tokens, "n_seen": result.n_seen, "n_scored": len(result.kl)}
    return {**told, "perplexity": result.perplexity, **kl, "needles": [asdict(found) for found in result.needles]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--tokens", default="2048,4096,8192", help="lengths of texts, with commas between them")
    parser.add_argument("--texts", type=int, default=4, help="texts of each length")
    parser.add_argument("--scored", type=int, default=128, help="last tokens of a text that are scored")
    parser.add_argument("--depths", type=int, default=10, help="facts in each length; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="worker threads; default: one per usable core")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        modes = [Mode.parse(name) for name in dict.fromkeys((EXACT, *(given.modes or USUAL)))]
    except ValueError as reason:
        parser.error(str(reason))
    records = []
    for n_tokens in map(int, given.tokens.split(",")):
        results = Measurement(given, n_tokens, modes).run()
        records += [record(each) for each in results]
        if not given.json:
            print(f"{given.model.name}, {n_tokens} tokens, {len(results[0].kl)} scored\n{table(results)}\n", flush=True)
    if given.json:
        print(json.dumps(records))


if __name__ == "__main__":
    main()
