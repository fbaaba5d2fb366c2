"""Separates a model's thinking from its answer.

In: the text of an answer, possibly unfinished. Out: its sections in order. The tags around thoughts are removed; text
that ends within a thought has no answer yet. If the prompt ends with an opening tag, the text starts inside a thought:
then the only sign is a closing tag at the beginning of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeinfer.app.tui.text.markdown import Fence, FenceStart, fences_of, opening_of
from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS, ThoughtFormat

PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
)
_BEGIN = re.compile(r"\s*(" + "|".join(re.escape(begin) for begin, _ in PAIRS) + ")")
_ENDS = dict(PAIRS)


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an answer: a thought, or the answer itself. `is_open`: its end has not arrived yet."""

    is_thought: bool
    text: str
    is_open: bool = False


def sections_of(text: str) -> tuple[Section, ...]:
    """Split an answer into sections. Thoughts are only recognised at its beginning; later tags are text."""
    if (form := _form_of(text)) is not None:
        return _in_channels(text, form)
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


def _form_of(text: str) -> ThoughtFormat | None:
    """The form of an answer that begins with a mark of a family whose marks surround thoughts and answers."""
    begun = text.lstrip()
    if not begun.startswith("<|"):
        return None
    forms = [form for form in THOUGHT_FORMATS.entries().values() if form.anywhere]
    return next((form for form in forms if begun.startswith((form.begin, *form.dropped))), None)


def _in_channels(text: str, form: ThoughtFormat) -> tuple[Section, ...]:
    reader = AnswerReader(form)
    content = reader.push(text)
    is_open = reader.is_thinking
    content += reader.finish()
    thoughts = [Section(True, reader.thoughts, is_open=is_open)] if reader.thoughts or is_open else []
    return (*thoughts, *([Section(False, content)] if content.strip() or not thoughts else []))


def may_begin_thought(text: str) -> bool:
    """Whether the text so far could be the beginning of an opening tag, or the whitespace before it."""
    begun = text.lstrip()
    return any(begin.startswith(begun) for begin, _ in PAIRS)


def _begun_inside(text: str) -> tuple[str, str] | None:
    """Split off a thought that began in the prompt. Returns the thought and the rest, or None if there is none.

    An opening tag before the first closing tag means that the text is an answer from its start, so all of it is shown.
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


def shown_fences(text: str) -> tuple[Fence, ...]:
    """The code fences of an answer as its text shows them, numbered without those of its thoughts, if it has others."""
    answer = next((section.text for section in sections_of(text) if not section.is_thought), "")
    return fences_of(answer) or fences_of(text)
