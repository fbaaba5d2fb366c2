"""Separates thoughts, content and calls in an answer while it is generated.

In: pieces of text; the forms of thoughts and calls of a model's family. Out: content that is certain by now; thoughts
and calls so far. No text is lost but the marks themselves, however the pieces are cut. Knows no templates.
"""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat
from edgeinfer.models.text.tokenizer import overlap
from edgeinfer.models.text.tools import ToolCall, ToolReader


class AnswerReader:
    """Reads one answer: push pieces, take what is certain, finish at the end.

    `opened`: the prompt ends within a thought.
    """

    def __init__(self, form: ThoughtFormat | None, tools: ToolReader | None = None, *, opened: bool = False) -> None:
        self._form, self._tools = form, tools
        self._held = ""
        self._in_thought = opened and form is not None
        self._may_begin = not self._in_thought
        self._after_thought = self._has_content = self._is_final = False
        self.thoughts = ""
        """The thoughts so far, without white space around them that is only layout."""

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends within a thought."""
        return self._in_thought

    @property
    def calls(self) -> list[ToolCall]:
        """The calls completed so far."""
        return [] if self._tools is None else self._tools.calls

    def push(self, text: str) -> str:
        """Add text, and return the content that is now certain."""
        content = self._without_thoughts(text)
        return content if self._tools is None else self._tools.push(content)

    def finish(self) -> str:
        """End the answer, and return the content that was held back."""
        self._is_final = True
        content = self._without_thoughts("")
        self.thoughts = self.thoughts.rstrip()
        return content if self._tools is None else self._tools.push(content) + self._tools.finish()

    def _without_thoughts(self, text: str) -> str:
        if self._form is None:
            return text
        self._held += text
        content, goes_on = "", True
        while goes_on:
            more, goes_on = self._thinking(self._form) if self._in_thought else self._answering(self._form)
            content += more
        return content

    def _thinking(self, form: ThoughtFormat) -> tuple[str, bool]:
        """Move text to the thoughts, up to their end."""
        at = self._held.find(form.end)
        cut = at if at >= 0 else len(self._held) - (0 if self._is_final else overlap(self._held, form.end))
        self.thoughts = (self.thoughts + self._held[:cut]).lstrip()
        if at < 0:
            self._held = self._held[cut:]
            return "", False
        self._held = self._held[at + len(form.end) :]
        self.thoughts = self.thoughts.rstrip()
        self._in_thought, self._after_thought, self._may_begin = False, True, form.anywhere
        return "", True

    def _answering(self, form: ThoughtFormat) -> tuple[str, bool]:
        """The content up to the next mark, and whether there is one."""
        if self._after_thought:
            self._held = self._held.lstrip()
            if not self._held:
                return "", False
            self._after_thought = False
        text = self._held
        if not (self._has_content or self._is_final or text.strip()):
            return "", False  # white space before a thought is no content
        marks = [*form.dropped, *([form.begin] if self._begins(form, text) else [])]
        found = [(at, -len(mark), mark) for mark in marks if (at := text.find(mark)) >= 0]
        n_held = 0 if self._is_final else max((overlap(text, mark) for mark in marks), default=0)
        if found and not self._is_part(text, min(found), marks):
            at, _, mark = min(found)
            self._held = text[at + len(mark) :]
            if mark == form.begin:
                self._in_thought = True
                self.thoughts += "\n\n" if self.thoughts else ""
                return text[:at] if self._noted(text[:at]) else "", True
            self._noted(text[:at])
            return text[:at], True
        cut = min([len(text) - n_held, *(at for at, _, _ in found)])
        if not (self._has_content or self._is_final or text[:cut].strip()):
            return "", False
        self._held = text[cut:]
        self._may_begin = self._may_begin and (form.anywhere or not self._noted(text[:cut]))
        self._noted(text[:cut])
        return text[:cut], False

    def _noted(self, content: str) -> bool:
        """Whether there is content by now, of which this is the next part."""
        self._has_content = self._has_content or bool(content.strip())
        return self._has_content

    def _begins(self, form: ThoughtFormat, text: str) -> bool:
        """Whether a thought may begin in this text: anywhere, or as the first thing in the answer."""
        begun = text.lstrip()
        return self._may_begin and (form.anywhere or begun.startswith(form.begin) or form.begin.startswith(begun))

    def _is_part(self, text: str, found: tuple[int, int, str], marks: list[str]) -> bool:
        """Whether a mark that was found may still turn out to be the beginning of a longer one."""
        at = found[0]
        rest = text[at:]
        return not self._is_final and any(len(mark) > len(rest) and mark.startswith(rest) for mark in marks)
