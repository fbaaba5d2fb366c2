"""What models think before they answer, told apart from the answer.

In: the text of an answer, perhaps unfinished. Out: its sections in order. The marks that models put around their
thoughts are left out; an answer that ends within a thought has no answer yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    """Whether the text so far could be the beginning of a mark."""
    begun = text.lstrip()
    return bool(begun) and any(begin.startswith(begun) for begin, _ in PAIRS)
