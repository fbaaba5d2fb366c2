"""How full the context is, and what would be left out if a draft were sent now.

In: a model, the conversation, a draft. Out: counts. Tokenizes, and evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.engine.conversation import Messages, fit
from edgeinfer.engine.llm import Facts
from edgeinfer.models.text import Message


class Tokenizing(Protocol):
    """Counts the tokens of prompts."""

    def tokens(self, messages: Messages) -> list[int]: ...


class Prompting(Protocol):
    """What is asked of a model here."""

    @property
    def facts(self) -> Facts: ...

    @property
    def prompts(self) -> Tokenizing: ...


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Tokens of the conversation, of the draft, and of the whole context; messages that sending it would leave out."""

    n_used: int
    n_draft: int
    n_context: int
    n_dropped: int


def context_use(model: Prompting, messages: Sequence[Message], draft: str, max_tokens: int | None) -> ContextUse:
    """How full the context is. Raises ContextOverflow where the draft alone is longer, BadTemplate."""
    n_context = model.facts.n_context
    n_used = len(model.prompts.tokens(messages)) if any(message.role != "system" for message in messages) else 0
    if not draft:
        return ContextUse(n_used, 0, n_context, 0)
    with_draft = [*messages, Message("user", draft)]
    n_all = len(model.prompts.tokens(with_draft))
    fitted = fit(with_draft, model.prompts.tokens, n_context, max_tokens)
    return ContextUse(n_used, max(0, n_all - n_used), n_context, fitted.n_dropped)
