"""Functions that an answer may call: how to describe them to the model, what it may write, and how to find the calls.

In: options of an answer, a chat template, a model family's call format. Out: messages; a constraint of the answer; a
reader of calls. Knows no logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edgeinfer.engine.requests.constrained.call_grammars import is_enforceable, tool_grammar
from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.engine.requests.python_tools import Tool, described
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.earlier_calls import with_instructions
from edgeinfer.models.text.tool_formats import FALLBACK, TOOL_FORMATS, ToolFormat, format_of
from edgeinfer.models.text.tools import Function, ToolReader, functions_of, with_objects

CHOICES = ("auto", "none", "required")
_ANY: Mapping[str, Any] = MappingProxyType({"type": "object"})


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that an answer may call.

    `in_words`: the template has no form for functions, or none that we know.
    """

    tools: tuple[Mapping[str, Any], ...]
    functions: tuple[Function, ...]
    form: ToolFormat
    in_words: bool
    required: bool
    several: bool

    @classmethod
    def of(
        cls,
        tools: Sequence[Tool] | None,
        choice: str,
        several: bool,
        template: ChatTemplate,
        *,
        has_schema: bool = False,
    ) -> ToolUse | None:
        """The functions that the options ask for; None if none may be called. Raises BadSetting.

        `has_schema`: an answer that is no call follows a schema, so that nothing may be written but calls and that.
        """
        told = described(tools or ())
        functions = functions_of(told)
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
        if found is not None and (required or has_schema) and not is_enforceable(found[1], functions):
            found = None  # no grammar enforces these calls; those of the fallback can be enforced
        form = TOOL_FORMATS.get(FALLBACK) if found is None else found[1]
        several = several and choice not in names
        return cls(tuple(told), tuple(functions), form, found is None, required, several)

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """A conversation that tells of the functions, if the template does not."""
        return with_instructions(messages, self.tools) if self.in_words else list(map(with_objects, messages))

    def constraint(
        self,
        guidance: Guidance,
        tokenizer: Tokenizer,
        answer_schema: str | None = None,
        leads: tuple[str, str] = ("", ""),
    ) -> Constraint | None:
        """The constraint of the answer: text or calls; with `answer_schema`, JSON that follows it or calls.

        `leads`: the marks before such JSON, and before calls.

        A call that must be made comes before any answer. Schemas of functions that llguidance cannot follow are not
        enforced if the model does not have to call one; nor are calls that are no JSON objects, unless a function is
        strict. Raises BadSetting for what cannot be enforced.
        """
        answer = None if answer_schema is None or self.required else guidance.schema_of(answer_schema)
        is_free = self.form.shape == "block" and not (self.required or self.is_strict)
        if answer is None and (is_free or not is_enforceable(self.form, self.functions)):
            return None
        try:
            return self._constraint(guidance, tokenizer, self.functions, answer, leads)
        except BadSetting:
            if self.required:
                raise
        if answer is None:
            return None
        return self._constraint(
            guidance, tokenizer, [replace(each, parameters=_ANY) for each in self.functions], answer, leads
        )

    def _constraint(
        self,
        guidance: Guidance,
        tokenizer: Tokenizer,
        functions: Sequence[Function],
        answer: object,
        leads: tuple[str, str],
    ) -> Constraint:
        functions = [replace(each, parameters=guidance.kept(dict(each.parameters))) for each in functions]
        grammar = tool_grammar(
            self.form,
            functions,
            tokenizer.marks,
            required=self.required,
            several=self.several,
            answer=answer,
            leads=leads,
        )
        schemas = [*(each.parameters for each in functions), answer]
        return guidance.constraint(grammar, schemas if self._is_json or answer is not None else None)

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
