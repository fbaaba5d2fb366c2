"""Long real texts: the articles of Spec-Bench one after another, in pieces of a wanted length; and facts to hide there.

In: its file of questions (lines of JSON with `category` and `turns`), a tokenizer. Out: tokens. Knows no models.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeinfer.models.text import Tokenizer

CATEGORIES = ("summarization", "rag")
"""Those whose questions are articles, or passages of some."""
ASKED = "Summarize: "
"""What stands before an article."""
COLOURS = ("blue", "green", "yellow", "purple", "orange", "silver", "golden", "crimson", "white", "brown")
PLACES = ("locker", "drawer", "cabinet", "safe", "suitcase", "cupboard", "trunk", "chest", "gate", "shed")
DIGITS = 6


def article_text(questions: Path) -> str:
    """All articles, a blank line between two. Raises OSError, ValueError where there are none."""
    articles = []
    for line in questions.read_text(encoding="utf-8").splitlines():
        question: dict[str, Any] = json.loads(line)
        if question["category"] in CATEGORIES:
            articles.append(question["turns"][0].removeprefix(ASKED).strip())
    if not articles:
        raise ValueError(f"{questions} has no questions of the categories {' and '.join(CATEGORIES)}")
    return "\n\n".join(articles)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text in which nothing is special."""
    return tokenizer.encode(text, add_special=False, parse_special=False)


def pieces(tokens: Sequence[int], n_tokens: int, n_pieces: int) -> list[list[int]]:
    """The first disjoint pieces of a text. Raises ValueError if it is too short."""
    if len(tokens) < n_tokens * n_pieces:
        raise ValueError(
            f"{n_pieces} pieces of {n_tokens} tokens are more than the {len(tokens)} tokens of the articles"
        )
    return [list(tokens[first : first + n_tokens]) for first in range(0, n_tokens * n_pieces, n_tokens)]


@dataclass(frozen=True, slots=True)
class Needle:
    """A fact to hide in a text, and how it is asked for at the end: token ids.

    `depth`: where it stands, from 0 (the beginning of the text) to 1.
    """

    depth: float
    fact: list[int]
    question: list[int]
    answer: list[int]


def needles(tokenizer: Tokenizer, n_depths: int, seed: int = 0) -> Iterator[Needle]:
    """A fact for each of evenly spaced depths, the deepest in the text first."""
    draw = random.Random(seed)
    places = [f"{colour} {place}" for colour in COLOURS for place in PLACES]
    for number, place in reversed(list(enumerate(draw.sample(places, n_depths)))):
        code = "".join(draw.choices("123456789", k=DIGITS))
        said = f"The code of the {place} is"
        yield Needle(
            (number + 0.5) / n_depths,
            tokenizer.encode(f"\n\n{said} {code}.\n\n", add_special=False),
            tokenizer.encode(f"\n\nWhat is the code of the {place}? {said}", add_special=False),
            tokenizer.encode(f" {code}", add_special=False, goes_on=True),
        )
