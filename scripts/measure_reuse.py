"""Measures what prompts lose whose text was read elsewhere: after a changed line (`--reuse shifted`), or as modules.

Run from the repository root: `python scripts/measure_reuse.py MODEL QUESTIONS [MODE ...] [--tokens 2048] [--texts 5]
[--scored 64] [--json]`. QUESTIONS is Spec-Bench's file; its articles are the text; text by text, a fact stands a little
deeper in it. Modes: `shifted`: the text was read after another first line; `modules`: it consists of four modules, each
read by itself; `modules@0.9`: at this temperature. The rest of the text, and a question for the fact with its answer,
follow; they are read as usual. Compared with the same prompt read as a whole: perplexity of the rest, KL(exact || mode)
of the distributions that predict it, the log probability of the answer, whether greedy finds it, and what was read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.adapter_choice import is_number
from edgeinfer.engine.llm import LLM
from edgeinfer.graph.step import Floats
from scripts.long_context.figures import Figures, show, text_arguments
from scripts.long_context.texts import Needle, article_text, encoded, needles, pieces
from scripts.measure_parity import log_probabilities

FIRST_LINES = ("Today is Monday, the 3rd of March.\n\n", "It is Saturday evening, the 22nd of November 2031.\n\n")
N_MODULES = 4
EXACT, SHIFTED, MODULES = "exact", "shifted", "modules"
MODES = (SHIFTED, MODULES, f"{MODULES}@0.9")
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

    def count(self, figures: Figures, logs: Floats, exact: Floats) -> None:
        """Count the predictions of all that follows the body: log probabilities [T, V]."""
        figures.score(exact[: len(self.rest)], logs[: len(self.rest)], self.rest)
        figures.ask(self.needle, logs[-len(self.needle.answer) :])


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


def predicted(llm: LLM, prompt: Sequence[Any], after: Sequence[int], figures: Figures, **options: Any) -> Floats:
    """Log probabilities of what follows a prompt, float32[T, V], after an answer to it has read it."""
    with closing(llm.session()) as session:
        stream = session.complete(prompt, max_tokens=1, temperature=0, **options)
        stream.read()
        assert stream.stats is not None
        figures.n_prompt += stream.stats.n_prompt
        figures.n_read += stream.stats.n_prompt - stream.stats.n_cached
        with closing(session._cached.branch()) as branch, branch.lock:
            branch.cut(stream.stats.n_prompt - 1)
            tokens, found = [int(prompt[-1]), *after[:-1]], []
            for first in range(0, len(tokens), ROWS):
                part = tokens[first : first + ROWS]
                batch = branch.chain(part, wants_logits=True, n_outputs=len(part))
                found.append(log_probabilities(branch.evaluate(batch)))
                branch.commit(batch, np.arange(len(part), dtype=np.int32))
    return np.concatenate(found)


def after_a_changed_line(llm: LLM, text: Text, exact: Figures, shifted: Figures) -> None:
    """Measure a text that was read after another first line."""
    old, new = ([*llm.tokenize(line), *text.body] for line in FIRST_LINES)
    expected = predicted(llm, new, text.after, exact, reuse="exact")
    text.count(exact, expected, expected)
    with closing(llm.session()) as session:
        session.complete(old, max_tokens=1, temperature=0).read()
        text.count(shifted, predicted(llm, new, text.after, shifted, reuse="shifted"), expected)


def of_modules(llm: LLM, text: Text, exact: Figures, modes: Sequence[Figures]) -> None:
    """Measure a text that consists of modules; the last token of the body is read after them."""
    size, tokenizer = -(-len(text.body) // N_MODULES), llm.prompts.tokenizer
    parts = [tokenizer.decode(text.body[first : first + size]) for first in range(0, len(text.body), size)]
    expected: Floats | None = None
    for mode in modes:
        temperature = float(mode.mode.partition("@")[2] or 1)
        placed = [llm.modules.add(f"part{at}", part, temperature=temperature) for at, part in enumerate(parts)]
        last = encoded(tokenizer, "\n")
        if expected is None:
            whole = [*placed[0].prefix, *(token for module in placed for token in module.tokens), *last]
            expected = predicted(llm, whole, text.after, exact)
            text.count(exact, expected, expected)
        text.count(mode, predicted(llm, [*placed[0].prefix, *placed, *last], text.after, mode), expected)


def measured(given: argparse.Namespace, n_tokens: int, modes: Sequence[str]) -> list[Figures]:
    """All modes on texts of one length, each group after the exact reading of its prompts."""
    found = []
    opened = {"device": given.device, "spec": "off", "n_context": n_tokens, "threads": given.threads, "n_sessions": 4}
    if SHIFTED in modes:
        exact, shifted = Figures(f"{EXACT} ({SHIFTED})", n_tokens), Figures(SHIFTED, n_tokens)
        with edgeinfer.load(given.model, reuse=SHIFTED, **opened) as llm:
            for text in texts(llm, given, n_tokens):
                after_a_changed_line(llm, text, exact, shifted)
        found += [exact, shifted]
    others = [Figures(mode, n_tokens) for mode in modes if mode.startswith(MODULES)]
    if others:
        exact = Figures(f"{EXACT} ({MODULES})", n_tokens)
        with edgeinfer.load(given.model, **opened) as llm:
            for text in texts(llm, given, n_tokens):
                of_modules(llm, text, exact, others)
        found += [exact, *others]
    return found


def main() -> None:
    parser = text_arguments(__doc__, tokens="2048,4096", texts=5, scored=64)
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"default: {' '.join(MODES)}")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_intermixed_args()
    modes = given.modes or MODES
    for mode in modes:
        name, _, temperature = mode.partition("@")
        if mode not in MODES and not (name == MODULES and is_number(temperature)):
            parser.error(f"there is no mode {mode!r}; there are: {', '.join(MODES)}")
    show(given, lambda n_tokens: measured(given, n_tokens, modes))


if __name__ == "__main__":
    main()
