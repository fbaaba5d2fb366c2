"""How model families set their thoughts apart from their answers, one file per family.

In: a chat template's source. Out: a `ThoughtFormat`. The family is recognised by what the template itself writes or
takes out of earlier answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeinfer.registry import Registry

if TYPE_CHECKING:
    from edgeinfer.models.text.tokenizer import Tokenizer

_WORDS = ("think", "THINK", "channel", "inner_prefix")
_TOKEN = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")


@dataclass(frozen=True, slots=True)
class ThoughtFormat:
    """Thoughts are between `begin` and `end`.

    anywhere: also later in an answer; otherwise only at its start, so that a model can write about the marks. dropped:
    further marks that the family puts around answers, which are no content. turn: what comes between a thought's end
    and what follows it; answer: the marks before a text. marks: texts that all occur in the templates of this family.
    """

    begin: str
    end: str
    marks: tuple[str, ...]
    anywhere: bool = False
    dropped: tuple[str, ...] = ()
    turn: str = "\n\n"
    answer: str = ""

    def is_written_by_token(self, tokenizer: Tokenizer) -> bool:
        """Whether thoughts begin or end with a token that is not shown in text."""
        names = [name for mark in (self.begin, self.end) for name in _TOKEN.findall(mark)]
        tokens = [token for name in names if (token := tokenizer.token_id(name)) is not None]
        return any(map(tokenizer.vocabulary.is_control, tokens))


THOUGHT_FORMATS: Registry[ThoughtFormat] = Registry(__name__, "FORMAT", "format of thoughts")


def thoughts_of(source: str) -> ThoughtFormat | None:
    """The format that a template is written for; None if it has none of them."""
    if not any(word in source for word in _WORDS):
        return None  # most models: without importing the formats
    found = [each for each in THOUGHT_FORMATS.entries().values() if all(mark in source for mark in each.marks)]
    return max(found, key=lambda each: sum(map(len, each.marks)), default=None)
