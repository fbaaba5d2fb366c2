"""From what is asked to the tokens of a prompt: conversations through the model's template, texts as they are.

In: messages or text. Out: a `Request`. A last message of the assistant is continued. Knows no cache and no devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.engine.continuing import partial_tokens, split_partial
from edgeinfer.engine.conversation import Fitted, Messages, fit
from edgeinfer.engine.request import Options, Request, request_of
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer


@dataclass(frozen=True, slots=True)
class Prompts:
    """A model's tokenizer and template, for a context of so many tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    n_context: int

    def chat(self, messages: Messages, options: Options, known: Sequence[int] = ()) -> Request:
        """A conversation, given whole, without its oldest turns where it outgrows the context.

        Where its last message is the assistant's, the answer goes on within that text. `known`: tokens read or
        generated before, which such a text is made of as far as they agree with it. Raises ContextOverflow,
        BadTemplate, BadSetting.
        """
        fitted = self.fitted(messages, options.get("max_tokens"), known)
        partial = split_partial([Message.of(message) for message in messages])[1]
        return request_of(fitted.prompt, options, notices=fitted.notices, continues_text=bool(partial))

    def fitted(self, messages: Messages, max_tokens: int | None = None, known: Sequence[int] = ()) -> Fitted:
        """The prompt of a conversation and what was left out of it. Raises as `chat`."""
        return fit(messages, lambda kept: self._tokens(kept, known), self.n_context, max_tokens)

    def text(self, text: str, options: Options, *, parse_special: bool = True) -> Request:
        """A text to continue as it is. `parse_special`: texts of special tokens mean them. Raises BadSetting."""
        prompt = self.tokenizer.encode(text, parse_special=parse_special)
        if self.tokenizer.vocabulary.add_eos:  # a text that goes on has no end yet
            prompt.pop()
        return request_of(tuple(prompt), options, continues_text=True)

    def render(self, messages: Messages) -> str:
        """The text the model is given for a conversation."""
        before, partial = split_partial([Message.of(message) for message in messages])
        return self.template.render(before, add_generation_prompt=True) + (partial or "")

    def n_tokens(self, messages: Messages) -> int:
        """How many tokens a conversation is, whether it fits or not. Raises BadTemplate, BadSetting."""
        return len(self._tokens([Message.of(message) for message in messages], ()))

    def _tokens(self, messages: Sequence[Message], known: Sequence[int]) -> list[int]:
        before, partial = split_partial(messages)
        head = self.tokenizer.encode_rendered(self.template.render(before, add_generation_prompt=True))
        return head + partial_tokens(self.tokenizer, head, partial, known) if partial else head
