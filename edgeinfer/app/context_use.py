"""How full the context is, and what would be left out if the chat were sent now.

In: a loaded model, a conversation, a message being written. Out: one frozen `ContextUse`. Only tokenizes: reads
nothing into the model and may be called while it answers, from any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeinfer.errors import ContextOverflow

if TYPE_CHECKING:
    from edgeinfer.engine.conversation import Fitted, Messages
    from edgeinfer.engine.facts import Facts


class PromptMaker(Protocol):
    """Makes prompts of conversations."""

    def render(self, messages: Messages) -> str: ...

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> Fitted: ...

    def n_tokens(self, messages: Messages) -> int: ...


class Prompting(Protocol):
    """A loaded model, as far as prompts go."""

    @property
    def facts(self) -> Facts: ...

    @property
    def prompts(self) -> PromptMaker: ...


@dataclass(frozen=True, slots=True)
class ContextUse:
    """The context if the chat were sent now, in tokens.

    n_prompt of n_context would be the prompt, and n_answer_room left for the answer; n_dropped_messages, the oldest,
    would be left out, which are n_dropped_tokens. Where `fits` is False the last turn with the system prompt is too
    long by itself: n_prompt is then all of the conversation, and nothing can be sent.
    """

    n_prompt: int
    n_context: int
    n_answer_room: int
    n_dropped_messages: int = 0
    n_dropped_tokens: int = 0
    fits: bool = True

    @property
    def share(self) -> float:
        """The part of the context that the prompt takes; more than 1 where it does not fit."""
        return self.n_prompt / self.n_context


def context_use(llm: Prompting, messages: Messages, draft_text: str = "", max_tokens: int | None = None) -> ContextUse:
    """What sending `messages`, and then `draft_text` if there is any, would take of the context.

    Raises BadTemplate, BadSetting.
    """
    prompts, n_context = llm.prompts, llm.facts.n_context
    sent = [*messages, *([{"role": "user", "content": draft_text}] if draft_text else [])]
    if not sent:
        return ContextUse(0, n_context, _room(n_context, max_tokens))
    try:
        fitted = prompts.fitted(sent, max_tokens)
    except ContextOverflow:
        return ContextUse(prompts.n_tokens(sent), n_context, 0, fits=False)
    n_prompt = len(fitted.prompt)
    n_dropped_tokens = prompts.n_tokens(sent) - n_prompt if fitted.n_dropped else 0
    return ContextUse(
        n_prompt, n_context, _room(n_context - n_prompt, max_tokens), fitted.n_dropped, max(0, n_dropped_tokens)
    )


def _room(n_free: int, max_tokens: int | None) -> int:
    """Tokens that an answer may have."""
    return n_free if max_tokens is None else min(n_free, max_tokens)
