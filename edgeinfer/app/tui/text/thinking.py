"""What models think before they answer, told apart from the answer.

In: the text of an answer, perhaps unfinished. Out: its sections in order. The marks that models put around their
thoughts are left out; an answer that ends within a thought has no answer yet. Where a prompt ends in the mark that
begins a thought, the answer begins inside it: then only the mark that ends it, at the beginning of a line, tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeinfer.app.tui.text.fences import FenceStart, opening_of

PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<reasoning>", "</reasoning>"),
)
_BEGIN = re.compile(r"\s*(" + "|".join(re.escape(begin) for begin, _ in PAIRS) + ")")
_ENDS = dict(PAIRS)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an answer: a thought, or what is answered. `is_open`: its end has not come yet."""

    is_thought: bool
    text: str
    is_open: bool = False


def sections_of(text: str) -> tuple[Section, ...]:
    """The sections of an answer. Thoughts stand at its beginning; marks further on are text."""
    sections: list[Section] = []
    if _BEGIN.match(text) is None and (inside := _begun_inside(text)) is not None:
        thought, text = inside
        sections.append(Section(True, thought.strip("\n")))
    while (found := _BEGIN.match(text)) is not None:
        end = _ENDS[found[1]]
        thought, mark, rest = text[found.end() :].partition(end)
        sections.append(Section(True, thought.strip("\n"), is_open=not mark))
        if not mark:
            return tuple(sections)
        text = rest
    if text.strip() or not sections:
        sections.append(Section(False, text.lstrip("\n") if sections else text))
    return tuple(sections)


def may_begin_thought(text: str) -> bool:
    """Whether the text so far could be the beginning of a mark, or of the spaces before it."""
    begun = text.lstrip()
    return any(begin.startswith(begun) for begin, _ in PAIRS)


def _begun_inside(text: str) -> tuple[str, str] | None:
    """The thought that a text begins in, and what comes after it; None where it does not.

    Where a thought is begun before one is ended, the text is an answer up to there, and all of it is shown.
    """
    if not any(end in text for _, end in PAIRS):
        return None
    fence: FenceStart | None = None
    at = 0
    for line in text.split("\n"):
        if fence is not None:
            fence = None if fence.is_closed_by(line) else fence
        elif (mark := next((end for _, end in PAIRS if line.lstrip().startswith(end)), None)) is not None:
            return text[:at], text[at + line.index(mark) + len(mark) :]
        elif any(begin in line for begin, _ in PAIRS):
            return None
        else:
            fence = opening_of(line)
        at += len(line) + 1
    return None
