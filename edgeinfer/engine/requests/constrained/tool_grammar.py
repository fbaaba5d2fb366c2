"""The grammar of an answer that may call functions: text until a call begins, then the call as its schema demands.

In: functions, a model family's call format, and what the caller wants. Out: a grammar in Lark's syntax, for llguidance.
Knows no logits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.guidance import JSON_FORM
from edgeinfer.models.text import Tokenizer
from edgeinfer.models.text.tool_formats import ToolFormat
from edgeinfer.models.text.tools import Function

_TEXT = r"TEXT: /(.|\n)*/"
_NO_OBJECT = r"TEXT: /([^{\s](.|\n)*)?/"


def tool_grammar(
    form: ToolFormat, functions: Sequence[Function], tokenizer: Tokenizer, *, required: bool, several: bool
) -> Grammar:
    """The grammar of calls of these functions: after text or, if `required`, at once; `several` calls, or one."""
    calls = "\n".join(f"call_{number}: {_call(form, function)}" for number, function in enumerate(functions))
    choice = " | ".join(f"call_{number}" for number in range(len(functions)))
    trigger = _quoted_trigger(form, tokenizer)
    rules = {"each": _each, "list": _list, "bare": _bare}[form.shape](form, trigger, required, several)
    return Grammar("grammar", f"%llguidance {{}}\n{rules}\ncall: {choice}\n{calls}\n")


def _call(form: ToolFormat, function: Function) -> str:
    """The JSON object of one call."""
    begin = f'{{"name": {json.dumps(function.name)}, "{form.arguments_key}": '
    schema = {**function.parameters, "x-guidance": JSON_FORM}
    return f"{json.dumps(begin)} %json {json.dumps(schema)} {json.dumps('}')}"


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
