"""Grammars of function calls in a family's form, in Lark's syntax for llguidance.

In: a `ToolFormat`, functions with the schemas of their arguments, the control tokens. Out: text until a call begins,
then the call as its schema demands; or calls at once. Control tokens are written by their ids, since no text is
tokenized to them. Knows no templates and reads no calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from edgeinfer.engine.requests.constrained.call_arguments import WrittenArguments, literal
from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.guidance import JSON_FORM
from edgeinfer.errors import BadSetting
from edgeinfer.models.text.special_tokens import MarkMatcher
from edgeinfer.models.text.tool_formats import ToolFormat, WrittenCalls
from edgeinfer.models.text.tools import Function
from edgeinfer.models.text.written_marks import WrittenMarks

_TEXT = r"TEXT: /(.|\n)*/"
_DEFINITIONS = ("$defs", "definitions")
_NO_OBJECT = r"TEXT: /([^{\s](.|\n)*)?/"


def tool_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    marks: WrittenMarks,
    *,
    required: bool,
    several: bool,
    answer: object = None,
    leads: tuple[str, str] = ("", ""),
) -> Grammar:
    """The grammar of calls of these functions, `several` or one: after text or, if `required`, at once.

    `answer`: the schema of an answer that may be given instead, without other text; `leads`: the marks before such an
    answer, and before calls. Raises BadSetting if the form cannot enforce the calls.
    """
    trigger, is_free = literal(form.trigger, marks), not required and answer is None
    one = _call_beside_json if form.shape == "bare" and answer is not None else _object
    calls = [f"call_{number}: {one(form, function)}" for number, function in enumerate(functions)]
    if form.written is not None and is_enforceable(form, functions):
        rules, calls = _block(form, form.written, functions, marks, not is_free, several)
        rules = rules if is_free else f"{rules}\n{_TEXT}"
    elif form.shape == "block":
        rules, calls = f"start: {trigger} TEXT\n{_TEXT}", []
    else:
        rules = {"each": _each, "list": _list, "bare": _bare}[form.shape](form, marks, not is_free, several)
    if is_free and form.shape != "bare":
        rules = f"{_until(trigger)}\n{rules}\n{_TEXT}"
    if answer is not None:
        before = [literal(lead, marks) for lead in leads]
        rules = rules.replace("start: ", f"start: answer | {before[1]} ", 1) + f"\nanswer: {before[0]} {_json(answer)}"
    if calls:
        choice = " | ".join(f"call_{number}" for number in range(len(functions)))
        rules = "\n".join([rules, f"call: {choice}", *calls])
    return Grammar("grammar", f"%llguidance {{}}\n{rules}\n")


def is_enforceable(form: ToolFormat, functions: Sequence[Function]) -> bool:
    """Whether a grammar can make a model call these functions in this form."""
    if form.written is None:
        return form.shape != "block"
    try:
        _block(form, form.written, functions, WrittenMarks(MarkMatcher({})), True, True)
        return True
    except BadSetting:
        return False


def _object(form: ToolFormat, function: Function) -> str:
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


def _each(form: ToolFormat, marks: WrittenMarks, required: bool, several: bool) -> str:
    trigger = literal(form.trigger, marks)
    body = f"{literal(form.begin[len(form.trigger) :], marks)} call {literal(form.end, marks)}"
    more = f"({literal(form.separator, marks)} {trigger} {body})*" if several else ""
    return f"start: {trigger} {body} {more}" if required else f"start: TEXT | begun {body} {more}"


def _list(form: ToolFormat, marks: WrittenMarks, required: bool, several: bool) -> str:
    more = '(", " call)*' if several else ""
    body = f'"[" call {more} "]" {literal(form.end, marks)}'
    return f"start: {literal(form.trigger, marks)} {body}" if required else f"start: TEXT | begun {body}"


def _bare(form: ToolFormat, marks: WrittenMarks, required: bool, several: bool) -> str:
    more = f"({literal(form.separator, marks)} call)*" if several else ""
    return f"start: call {more}" if required else f"start: TEXT | call {more}\n{_NO_OBJECT}"


def _block(
    form: ToolFormat,
    written: WrittenCalls,
    functions: Sequence[Function],
    marks: WrittenMarks,
    required: bool,
    several: bool,
) -> tuple[str, list[str]]:
    """The rules of calls in a block, and of each function's call."""
    calls: list[str] = []
    for number, function in enumerate(functions):
        arguments = WrittenArguments(written, function, marks, f"call_{number}")
        before, after = (literal(text, marks, function.name) for text in (written.before, written.after))
        calls += [f"call_{number}: {before} {arguments.rule} {after}", *arguments.rules]
    begin = form.begin if written.begin is None else written.begin
    end = literal(form.end if written.end is None else written.end, marks)
    trigger, separator = literal(form.trigger, marks), literal(written.separator or "", marks)
    repeats = several and written.separator is not None
    if written.each:
        body = f"call {end}"
        more = f"({separator} {trigger} {body})*" if repeats else ""
    else:
        more = f"({separator} call)*" if repeats else ""
        body, more = f"call {more} {end}", ""
    if required:
        return f"start: {literal(begin, marks)} {body} {more}", calls
    return f"start: TEXT | begun {literal(begin.removeprefix(form.trigger), marks)} {body} {more}", calls


def _until(trigger: str) -> str:
    """Text up to the first occurrence of the trigger."""
    return f"begun: TEXT {trigger}" if trigger.startswith("<[") else f"begun[lazy]: TEXT {trigger}"
