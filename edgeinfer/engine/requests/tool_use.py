"""Functions that an answer may call: how to describe them to the model, what it may write, and how to find the calls.

In: options of an answer, a chat template, a model family's call format. Out: messages; a grammar in Lark's syntax, for
llguidance: text until a call begins, then the call as its schema demands; a reader of calls. Knows no logits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from edgeinfer.engine.requests.constrained.constraints import Constraint, Grammar
from edgeinfer.engine.requests.constrained.guidance import JSON_FORM, Guidance
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import ChatTemplate, Message, Tokenizer
from edgeinfer.models.text.earlier_calls import told_in_words
from edgeinfer.models.text.tool_formats import FALLBACK, TOOL_FORMATS, ToolFormat, format_of
from edgeinfer.models.text.tools import Function, ToolReader, functions_of, with_objects

CHOICES = ("auto", "none", "required")
_TEXT = r"TEXT: /(.|\n)*/"
_NO_OBJECT = r"TEXT: /([^{\s](.|\n)*)?/"
_DEFINITIONS = ("$defs", "definitions")
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
        if found is not None and required and found[1].shape == "block":
            found = None  # no grammar enforces its calls; those of the fallback can be enforced
        form = TOOL_FORMATS.get(FALLBACK) if found is None else found[1]
        several = several and choice not in names
        return cls(tuple(tools or ()), tuple(functions), form, found is None, required, several)

    def messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """A conversation in the form that the template takes."""
        return told_in_words(messages, self.tools) if self.in_words else list(map(with_objects, messages))

    def constraint(
        self, guidance: Guidance, tokenizer: Tokenizer, answer_schema: str | None = None
    ) -> Constraint | None:
        """The constraint of the answer: text or calls; with `answer_schema`, JSON that follows it or calls.

        A call that must be made comes before any answer. Schemas of functions that llguidance cannot follow are not
        enforced if the model does not have to call one. Raises BadSetting for what cannot be enforced.
        """
        answer = None if answer_schema is None or self.required else guidance.schema_of(answer_schema)
        if self.form.shape == "block" and answer is None:
            return None
        try:
            return self._constraint(guidance, tokenizer, self.functions, answer)
        except BadSetting:
            if self.required:
                raise
        if answer is None:
            return None
        return self._constraint(
            guidance, tokenizer, [replace(each, parameters=_ANY) for each in self.functions], answer
        )

    def _constraint(
        self, guidance: Guidance, tokenizer: Tokenizer, functions: Sequence[Function], answer: object
    ) -> Constraint:
        functions = [replace(each, parameters=guidance.kept(dict(each.parameters))) for each in functions]
        grammar = tool_grammar(
            self.form, functions, tokenizer, required=self.required, several=self.several, answer=answer
        )
        return guidance.constraint(grammar, [*(each.parameters for each in functions), answer])

    def reader(self) -> ToolReader:
        """A new reader that separates calls from content in an answer."""
        parameters = {function.name: function.parameters for function in self.functions}
        return ToolReader(self.form, frozenset(parameters), parameters)

    def is_written_by_token(self, tokenizer: Tokenizer) -> bool:
        """Whether calls begin with a token that is not shown in text."""
        return trigger_token(self.form, tokenizer) is not None


def tool_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    tokenizer: Tokenizer,
    *,
    required: bool,
    several: bool,
    answer: object = None,
) -> Grammar:
    """The grammar of calls of these functions, `several` or one: after text or, if `required`, at once.

    `answer`: the schema of an answer that may be given instead, without other text.
    """
    one = _call_beside_json if form.shape == "bare" and answer is not None else _call
    calls = "\n".join(f"call_{number}: {one(form, function)}" for number, function in enumerate(functions))
    choice = " | ".join(f"call_{number}" for number in range(len(functions)))
    trigger, is_free = _quoted_trigger(form, tokenizer), not required and answer is None
    if form.shape == "block":
        rules, calls = f"start: {trigger} TEXT\n{_TEXT}", ""
    else:
        rules = {"each": _each, "list": _list, "bare": _bare}[form.shape](form, trigger, not is_free, several)
        calls = f"\ncall: {choice}\n{calls}"
    if answer is not None:
        rules = rules.replace("start: ", "start: answer | ", 1) + f"\nanswer: {_json(answer)}"
    return Grammar("grammar", f"%llguidance {{}}\n{rules}{calls}\n")


def _call(form: ToolFormat, function: Function) -> str:
    """The JSON object of one call."""
    begin = f'{{"{form.name_key}": {json.dumps(function.name)}, "{form.arguments_key}": '
    return f"{json.dumps(begin)} {_json(function.parameters)} {json.dumps('}')}"


def _call_beside_json(form: ToolFormat, function: Function) -> str:
    """The same where other JSON may stand instead: both must begin with the same parts, or the lexer errs."""
    named = {form.name_key: {"const": function.name}, form.arguments_key: function.parameters}
    schema = {"type": "object", "properties": named, "required": [*named], "additionalProperties": False}
    return _json({**schema, **{key: function.parameters[key] for key in _DEFINITIONS if key in function.parameters}})


def _json(schema: object) -> str:
    """JSON that follows a schema, in the grammar's notation."""
    limited = {**schema, "x-guidance": JSON_FORM} if isinstance(schema, Mapping) else {"x-guidance": JSON_FORM}
    return f"%json {json.dumps(limited)}"


def _each(form: ToolFormat, trigger: str, required: bool, several: bool) -> str:
    after, end = form.begin[len(form.trigger) :], json.dumps(form.end)
    body = f"{json.dumps(after)} call {end}" if after else f"call {end}"
    more = f"({json.dumps(form.separator)} {trigger} {body})*" if several else ""
    if required:
        return f"start: {trigger} {body} {more}"
    return f"{_until(trigger)}\nstart: TEXT | begun {body} {more}\n{_TEXT}"


def _list(form: ToolFormat, trigger: str, required: bool, several: bool) -> str:
    more = '(", " call)*' if several else ""
    body = f'"[" call {more} "]" {json.dumps(form.end) if form.end else ""}'
    if required:
        return f"start: {trigger} {body}"
    return f"{_until(trigger)}\nstart: TEXT | begun {body}\n{_TEXT}"


def _bare(form: ToolFormat, trigger: str, required: bool, several: bool) -> str:
    more = f"({json.dumps(form.separator)} call)*" if several else ""
    return f"start: call {more}" if required else f"start: TEXT | call {more}\n{_NO_OBJECT}"


def _until(trigger: str) -> str:
    """Text up to the first occurrence of the trigger."""
    return f"begun: TEXT {trigger}" if trigger.startswith("<[") else f"begun[lazy]: TEXT {trigger}"


def _quoted_trigger(form: ToolFormat, tokenizer: Tokenizer) -> str:
    """The trigger in the grammar's notation."""
    token = trigger_token(form, tokenizer)
    return json.dumps(form.trigger) if token is None else f"<[{token}]>"


def trigger_token(form: ToolFormat, tokenizer: Tokenizer) -> int | None:
    """The token that begins calls, if it is one that plain text is never tokenized to and that is not shown in text."""
    token = tokenizer.token_id(form.trigger)
    return token if token is not None and tokenizer.vocabulary.is_control(token) else None
