"""Outlines: what a model is told to write one and to expand its points, and how one is read.

In: a question; the text of an outline. Out: turns of a conversation; the points, or why the text is no outline. Source:
Skeleton-of-Thought (Ning et al., arXiv 2307.15337), prompts 1 and 2 in other words. Examples are turns of their own:
with them small models write outlines more often than with examples in one message. What points have in common comes
first, so that it is read once. Knows no models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_POINTS, MOST_POINTS = 2, 10
MOST_WORDS = 16
"""Words of a point: it is asked for in 3 to 5, and more than this is an answer already."""
MOST_CHARACTERS = 120
"""Characters of a point, for scripts that write no spaces."""
FIRST = "1."
"""The beginning of an outline, put into the model's mouth."""
EXAMPLES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What are the typical types of Chinese dishes?", ("Dumplings", "Noodles", "Dim sum", "Hot pot", "Fried rice")),
    (
        "How can people use less energy at home?",
        ("Better insulation", "Efficient light bulbs", "Lower heating temperature", "Shorter showers"),
    ),
)
"""Questions and outlines of their answers."""
MOST_COPIED = 1
"""Points that may be those of the examples."""
_ASK = (
    "Write only the outline of the answer: a list of 3 to 10 points, numbered 1., 2., 3. and so on, one a line. "
    "Each point is 3 to 5 words, not a sentence."
)
_POINT = re.compile(r"^(?: {0,3})(\d{1,3})[.):](?!\d)[ \t]*(.*)$")
_EDGES = " \t\r\f\v*_`#.:;,!-–—"


@dataclass(frozen=True, slots=True)
class Outline:
    """The points of an answer, in order."""

    points: tuple[str, ...]

    @property
    def text(self) -> str:
        """The points as a numbered list."""
        return "\n".join(f"{number}. {point}" for number, point in enumerate(self.points, 1))


@dataclass(frozen=True, slots=True)
class NoOutline:
    """Why a text is no outline."""

    reason: str


def outline_turns(question: str) -> list[dict[str, str]]:
    """The turns that ask for the outline of the answer to a question, with the beginning of the outline."""
    found: list[dict[str, str]] = []
    for asked, points in EXAMPLES:
        found += _turns(f"{asked}\n\n{_ASK}", Outline(points).text)
    return found + _turns(f"{question}\n\n{_ASK}", FIRST)


def point_turns(question: str, outline: Outline, number: int) -> list[dict[str, str]]:
    """The turns that ask for the text of a point, counted from 1 on, with the beginning of the text."""
    return _turns(point_prompt(question, outline, number), point_start(outline, number))


def _turns(asked: str, said: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]


def point_prompt(question: str, outline: Outline, number: int) -> str:
    """What asks for the text of a point, counted from 1 on; the answer begins with `point_start`."""
    return (
        f"{question}\n\n"
        f"The outline of the answer is:\n\n{outline.text}\n\n"
        "Write one point of it in 1 or 2 short sentences, and do not go on with other points. "
        f"Write point {number} now."
    )


def point_start(outline: Outline, number: int) -> str:
    """The beginning of a point in the answer, put into the model's mouth."""
    return f"{number}. {outline.points[number - 1]}:"


def point_stops(outline: Outline) -> tuple[str, ...]:
    """Where the text of a point ends even if the model would go on: at another point, or a paragraph."""
    return (*(f"\n{number}." for number in range(1, len(outline.points) + 2)), "\n\n")


def read_outline(text: str, *, is_whole: bool = True) -> Outline | NoOutline:
    """The points of an outline. Lines without a number are no points. `is_whole`: the model has ended it itself."""
    points = _points(text.split("\n"))
    if isinstance(points, NoOutline):
        return points
    if not is_whole:
        return NoOutline("the outline did not come to an end")
    if len(points) < LEAST_POINTS:
        return NoOutline("the outline has no points" if not points else "the outline has only one point")
    return Outline(tuple(points))


def is_lost(text: str) -> bool:
    """Whether what was written of an outline cannot become one any more."""
    return isinstance(_points(text.split("\n")[:-1]), NoOutline)


def _points(lines: Sequence[str]) -> list[str] | NoOutline:
    points: list[str] = []
    for line in lines:
        match = _POINT.match(line)
        if match is None:
            continue
        number, point = int(match[1]), match[2].strip(_EDGES)
        if number != len(points) + 1:
            return NoOutline(f"point {number} of the outline comes where {len(points) + 1} should")
        if reason := _why_no_point(number, point, points):
            return NoOutline(reason)
        points.append(point)
        if len(points) > MOST_POINTS:
            return NoOutline(f"the outline has more than {MOST_POINTS} points")
        if sum(_plain(each) in _EXAMPLE_POINTS for each in points) > MOST_COPIED:
            return NoOutline("the outline copies an example")
    return points


def _why_no_point(number: int, point: str, before: Sequence[str]) -> str:
    """Why a text cannot be the next point; "" if it can."""
    if not point:
        return f"point {number} of the outline is empty"
    if len(point.split()) > MOST_WORDS or len(point) > MOST_CHARACTERS:
        return f"point {number} of the outline is too long for a point"
    if _plain(point) in map(_plain, before):
        return f"point {number} of the outline repeats another one"
    return ""


def _plain(point: str) -> str:
    return " ".join(re.sub(r"[^\w\s]", " ", point.casefold()).split())


_EXAMPLE_POINTS = frozenset(_plain(point) for _, points in EXAMPLES for point in points)


def outline_regex() -> str:
    """A regular expression of the rest of an outline after FIRST: 3 to 10 numbered points, one a line."""
    line = f" [^\\n]{{2,{MOST_CHARACTERS // 2}}}"
    rest = ""
    for number in range(MOST_POINTS, LEAST_POINTS + 1, -1):
        rest = f"(\\n{number}\\.{line}{rest})?"
    return f"{line}\\n2\\.{line}\\n3\\.{line}{rest}"
