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
import sys
from collections.abc import Sequence

from edgeinfer.graph.step import Floats
from scripts.long_context.figures import Figures, show, text_arguments
from scripts.long_context.modes import EXACT, USUAL, Mode
from scripts.long_context.reader import Reader
from scripts.long_context.texts import article_text, encoded, needles, pieces
from scripts.measure_parity import log_probabilities


class Measurement:
    """All modes on texts of one length."""

    def __init__(self, given: argparse.Namespace, n_tokens: int, modes: Sequence[Mode]) -> None:
        self._given, self._n_tokens = given, n_tokens
        self._modes = modes
        self._exact: list[Floats] = []
        """Log probabilities of the exact model, by text."""
        self.results = {mode: Figures(mode.name, n_tokens, mode.budget(n_tokens)) for mode in modes}

    def run(self) -> list[Figures]:
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
                result = self.results[mode]
                result.score(self._exact[number], logs, piece[n_read + 1 :])
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
                logs = log_probabilities(reader.decoded([*needle.question, *needle.answer[:-1]], mode))
                fact = self.results[mode].ask(needle, logs[len(needle.question) - 1 :])
                self._tell(f"depth {fact.depth:.2f}, {mode.name}: {fact.logprob:.2f}")

    def _tell(self, said: str) -> None:
        print(f"{self._n_tokens} tokens, {said}", file=sys.stderr, flush=True)


def main() -> None:
    parser = text_arguments(__doc__, tokens="2048,4096,8192", texts=4, scored=128)
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--depths", type=int, default=10, help="facts in each length; 0: none")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_intermixed_args()
    try:
        modes = [Mode.parse(name) for name in dict.fromkeys((EXACT, *(given.modes or USUAL)))]
    except ValueError as reason:
        parser.error(str(reason))
    show(given, lambda n_tokens: Measurement(given, n_tokens, modes).run())


if __name__ == "__main__":
    main()
