"""From what is asked to the tokens of a prompt: conversations through the model's template, texts as they are.

In: messages or text. Out: a `Request`. Knows no cache and no devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.engine.conversation import Messages, fit
from edgeinfer.engine.request import Options, Request, request_of
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer


@dataclass(frozen=True, slots=True)
class Prompts:
    """A model's tokenizer and template, for a context of so many tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    n_context: int

    def chat(self, messages: Messages, options: Options, cached: Sequence[int] = ()) -> Request:
        """A conversation, given whole, without its oldest turns where it outgrows the context.

        Where it ends with an answer that answer is continued; `cached`: tokens that were read, of which its own are
        taken where they say the same, as a text can be written in several ways. Raises ContextOverflow, BadTemplate,
        BadSetting.
        """
        fitted = fit(messages, self.tokens, self.n_context, options.get("max_tokens"))
        begun = _begun(messages)
        prompt = fitted.prompt
        if begun and not fitted.n_dropped:
            prompt = self._going_on(messages, begun, cached) or prompt
        return request_of(prompt, options, continues_text=bool(begun), notices=fitted.notices)

    def tokens(self, messages: Messages) -> list[int]:
        """The tokens of a conversation, with the beginning of an answer. Raises BadTemplate."""
        return self.tokenizer.encode_rendered(self.render(messages))

    def text(self, text: str, options: Options, *, parse_special: bool = True) -> Request:
        """A text to continue as it is. `parse_special`: texts of special tokens mean them. Raises BadSetting."""
        prompt = self.tokenizer.encode(text, parse_special=parse_special)
        if self.tokenizer.vocabulary.add_eos:  # a text that goes on has no end yet
            prompt.pop()
        return request_of(tuple(prompt), options, continues_text=True)

    def render(self, messages: Messages) -> str:
        """The text the model is given for a conversation: with the beginning of an answer, or the answer so far."""
        begun = _begun(messages)
        if not begun:
            return self.template.render(messages, add_generation_prompt=True)
        return self.template.render(messages[:-1], add_generation_prompt=True) + begun

    def _going_on(self, messages: Messages, begun: str, cached: Sequence[int]) -> tuple[int, ...] | None:
        """The prompt that continues an answer with the tokens that were cached of it; None where there are none."""
        before = self.tokens(messages[:-1])
        own = list(cached[len(before) :])
        if not own or list(cached[: len(before)]) != before:
            return None
        said = self.tokenizer.decode(own)
        if not begun.startswith(said):
            return None
        return (*before, *own, *self.tokenizer.encode_within(begun[len(said) :]))


def _begun(messages: Messages) -> str:
    """The text of the answer that a conversation ends with, "" where it ends otherwise."""
    last = Message.of(messages[-1]) if messages else None
    return last.text if last is not None and last.role == "assistant" and len(messages) > 1 else ""
