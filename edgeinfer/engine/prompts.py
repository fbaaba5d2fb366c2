"""From what is asked to the tokens of a prompt: conversations through the model's template, texts as they are.

In: messages or text. Out: a `Request`. Knows no cache and no devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.engine.conversation import Messages, fit
from edgeinfer.engine.request import Options, Request, request_of
from edgeinfer.models.text import ChatTemplate, Tokenizer


@dataclass(frozen=True, slots=True)
class Prompts:
    """A model's tokenizer and template, for a context of so many tokens."""

    tokenizer: Tokenizer
    template: ChatTemplate
    n_context: int

    def chat(self, messages: Messages, options: Options) -> Request:
        """A conversation, given whole, without its oldest turns where it outgrows the context.

        Raises ContextOverflow, BadTemplate, BadSetting.
        """
        fitted = fit(
            messages,
            lambda kept: self.tokenizer.encode_rendered(self.render(kept)),
            self.n_context,
            options.get("max_tokens"),
        )
        return request_of(fitted.prompt, options, notices=fitted.notices)

    def text(self, text: str, options: Options, *, parse_special: bool = True) -> Request:
        """A text to continue as it is. `parse_special`: texts of special tokens mean them. Raises BadSetting."""
        prompt = self.tokenizer.encode(text, parse_special=parse_special)
        if self.tokenizer.vocabulary.add_eos:  # a text that goes on has no end yet
            prompt.pop()
        return request_of(tuple(prompt), options, continues_text=True)

    def render(self, messages: Messages) -> str:
        """The text the model is given for a conversation."""
        return self.template.render(messages, add_generation_prompt=True)
