"""How full the context is, and what would be left out if the chat were sent now.

In: a loaded model, a conversation, a message being written. Out: one frozen `ContextUse`. Only tokenizes: runs no pass
of the model, and may be called from any thread while it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgeinfer.app.counting import counted
from edgeinfer.errors import ContextOverflow

if TYPE_CHECKING:
    from edgeinfer.engine.model_info import ModelInfo
    from edgeinfer.engine.requests.conversation import FittedPrompt, Messages

NAMED = 3
"""Files are listed by name only if there are fewer than this."""


class PromptMaker(Protocol):
    """Renders conversations as prompts."""

    def render(self, messages: Messages) -> str: ...

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt: ...

    def n_tokens(self, messages: Messages) -> int: ...


class Prompting(Protocol):
    """The parts of a loaded model that concern prompts."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def prompts(self) -> PromptMaker: ...


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Use of the context if the chat were sent now, in tokens.

    The prompt would take n_prompt of n_context and leave n_answer_room for the answer. The n_dropped_messages oldest
    messages would be left out, n_dropped_tokens in all. If `fits` is False, the last turn with the system prompt is
    already too long: n_prompt then counts the whole conversation, and nothing can be sent.
    """

    n_prompt: int
    n_context: int
    n_answer_room: int
    n_dropped_messages: int = 0
    n_dropped_tokens: int = 0
    fits: bool = True

    @property
    def share(self) -> float:
        """Share of the context that the prompt takes; more than 1 if it does not fit."""
        return self.n_prompt / self.n_context


def context_use(llm: Prompting, messages: Messages, draft_text: str = "", max_tokens: int | None = None) -> ContextUse:
    """Context use of sending `messages`, followed by `draft_text` if it is not empty.

    Raises BadTemplate, BadSetting.
    """
    prompts, n_context = llm.prompts, llm.info.n_context
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


def why_too_long(llm: Prompting, system: Messages, text: str, names: Sequence[str] = ()) -> str | None:
    """Why a message can never be answered, and what would work; None if the context has room for it.

    `system`: the system messages, which must fit as well; `names`: the attachments, already included in the text.
    Raises BadTemplate, BadSetting.
    """
    prompts, n_context = llm.prompts, llm.info.n_context
    n_prompt = prompts.n_tokens([*system, {"role": "user", "content": text}])
    if n_prompt < n_context:
        return None
    n_around = prompts.n_tokens([*system, {"role": "user", "content": ""}])
    wanted, trained = _context_for(n_prompt), llm.info.n_context_trained
    if n_around >= n_context:
        return (
            f"the system prompt alone has {n_around:,} tokens and the context holds {n_context:,}. /system changes it"
        )
    with_files = f" with {', '.join(names)}" if len(names) < NAMED else f" with {counted(len(names), 'file')}"
    what = f"the message{with_files if names else ''} has {n_prompt - n_around:,} tokens"
    less = "Attach less" if names else "Send less"
    larger = f"{less}, or have a larger context: /set ctx {wanted}, then open the model again with /model"
    most = f"{less}: this model was made for {trained:,} tokens at most"
    return f"{what}, and there is room for {max(0, n_context - n_around):,}. {larger if wanted <= trained else most}"


def _context_for(n_prompt: int) -> int:
    """A context length with room for a prompt and an answer, rounded up to a multiple of 1024."""
    return -(-n_prompt * 4 // (3 * 1024)) * 1024


def _room(n_free: int, max_tokens: int | None) -> int:
    """Maximum tokens of an answer."""
    return n_free if max_tokens is None else min(n_free, max_tokens)
