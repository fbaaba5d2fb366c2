"""Functions that an answer may call: how the model is told, what it may write, and what of that are calls.

In: options of an answer, a chat template. Out: messages, a grammar, a reader of calls. Knows no logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.constrained.tool_grammar import tool_grammar, trigger_token
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.tool_formats import FALLBACK, TOOL_FORMATS, ToolFormat, format_of
from edgeinfer.models.text.tools import Function, ToolReader, functions_of, told_in_words, with_objects

CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What an answer may call. `in_words`: the template knows nothing of functions, or no form of calls that we do."""

    tools: tuple[Mapping[str, Any], ...]
    functions: tuple[Function, ...]
    form: ToolFormat
    in_words: bool
    required: bool
    several: bool

    @classmethod
    def of(
        cls, tools: Sequence[Mapping[str, Any]] | None, choice: str, several: bool, template: ChatTemplate
    ) -> ToolUse | None:
        """What the options ask for; None where nothing may be called. Raises BadSetting."""
        functions = functions_of(tools or ())
        names = [function.name for function in functions]
        if taken := [name for name in names if name in CHOICES]:
            raise BadSetting(f"a tool cannot be called {taken[0]!r}: tool_choice means something else by it")
        if choice not in (*CHOICES, *names):
            raise BadSetting(f"tool_choice is {choice!r}; it can be {', '.join((*CHOICES, *names))}")
        if choice == "none" or not functions:
            if choice == "required":
                raise BadSetting("tool_choice is required, and there are no tools")
            return None
        if choice in names:
            functions = [function for function in functions if function.name == choice]
        found = next(filter(None, map(format_of, template.sources.values())), None)
        form = TOOL_FORMATS.get(FALLBACK) if found is None else found[1]
        return cls(tuple(tools or ()), tuple(functions), form, found is None, choice != "auto", several)

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """A conversation as the template takes it."""
        return told_in_words(messages, self.tools) if self.in_words else list(map(with_objects, messages))

    def constraint(self, guidance: Guidance, tokenizer: Tokenizer) -> Constraint | None:
        """What the answer must follow. Raises BadSetting where it must call something and that cannot be seen to.

        Schemas that llguidance cannot follow are not enforced where the model need not call anything.
        """
        try:
            functions = [replace(each, parameters=guidance.kept(dict(each.parameters))) for each in self.functions]
            grammar = tool_grammar(self.form, functions, tokenizer, required=self.required, several=self.several)
            return guidance.constraint(grammar, [each.parameters for each in functions])
        except BadSetting:
            if self.required:
                raise
            return None

    def reader(self) -> ToolReader:
        """Who tells calls from content in an answer."""
        return ToolReader(self.form, frozenset(function.name for function in self.functions))

    def is_written_by_token(self, tokenizer: Tokenizer) -> bool:
        """Whether calls begin with a token that texts do not show."""
        return trigger_token(self.form, tokenizer) is not None
