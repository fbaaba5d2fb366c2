"""Functions that an answer may call: how to describe them to the model, what it may write, and how to find the calls.

In: options of an answer, a chat template, a model family's call format. Out: messages; a constraint of the answer; a
reader of calls. Knows no logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgeinfer.engine.requests.constrained.call_grammars import is_enforceable, tool_grammar
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.tool_formats import FALLBACK, TOOL_FORMATS, ToolFormat, format_of
from edgeinfer.models.text.tool_formats.values import python_calls
from edgeinfer.models.text.tools import (
    Function,
    ToolReader,
    calls_as_python,
    functions_of,
    told_in_words,
    with_objects,
)

CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that an answer may call.

    `in_words`: the template has no form for functions, or none that we know. `adds_calls`: it tells functions and
    leaves earlier calls to the text of answers.
    """

    tools: tuple[Mapping[str, Any], ...]
    functions: tuple[Function, ...]
    form: ToolFormat
    in_words: bool
    required: bool
    several: bool
    adds_calls: bool = False

    @classmethod
    def of(
        cls, tools: Sequence[Mapping[str, Any]] | None, choice: str, several: bool, template: ChatTemplate
    ) -> ToolUse | None:
        """The functions that the options ask for; None if none may be called. Raises BadSetting."""
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
        required = choice != "auto"
        if found is not None and required and not is_enforceable(found[1], functions):
            found = None  # no grammar enforces these calls; those of the fallback can be enforced
        form = TOOL_FORMATS.get(FALLBACK) if found is None else found[1]
        adds = form.read is python_calls and not any("tool_calls" in source for source in template.sources.values())
        return cls(tuple(tools or ()), tuple(functions), form, found is None, required, several, adds)

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """A conversation in the form that the template takes."""
        if self.in_words:
            return told_in_words(messages, self.tools)
        messages = list(map(with_objects, messages))
        return calls_as_python(messages, self.form) if self.adds_calls else messages

    def constraint(self, guidance: Guidance, tokenizer: Tokenizer) -> Constraint | None:
        """The constraint of the answer. Raises BadSetting if a call is required but cannot be enforced.

        Schemas that llguidance cannot follow are not enforced if the model does not have to call a function. Calls that
        are no JSON objects are free unless one is required or a function is strict.
        """
        is_block, is_free = self.form.shape == "block", not (self.required or self.is_strict)
        if is_block and (is_free or not is_enforceable(self.form, self.functions)):
            return None
        try:
            functions = [replace(each, parameters=guidance.kept(dict(each.parameters))) for each in self.functions]
            grammar = tool_grammar(self.form, functions, tokenizer.marks, required=self.required, several=self.several)
            return guidance.constraint(grammar, [each.parameters for each in functions] if self._is_json else None)
        except BadSetting:
            if self.required:
                raise
            return None

    def reader(self) -> ToolReader:
        """A new reader that separates calls from content in an answer."""
        parameters = {function.name: function.parameters for function in self.functions}
        return ToolReader(self.form, frozenset(parameters), parameters)

    def is_written_by_token(self, tokenizer: Tokenizer) -> bool:
        """Whether calls begin with a token that is not shown in text."""
        return bool(tokenizer.marks.of(self.form.trigger))

    @property
    def is_strict(self) -> bool:
        """Whether the arguments of a function must follow its schema."""
        return any(tool["function"].get("strict") for tool in self.tools)

    @property
    def _is_json(self) -> bool:
        """Whether texts among arguments are quoted as in JSON."""
        written = self.form.written
        return written is None or written.argument is None or written.texts == "JSON"
