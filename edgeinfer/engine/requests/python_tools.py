"""Python functions as tools: their names, docstrings and annotations in the format of OpenAI's API.

In: functions, or tools that are in that format already. Out: tools in that format. Calls nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from edgeinfer.errors import BadSetting

Tool = Mapping[str, Any] | Callable[..., object]
"""A function that an answer may call: as OpenAI's API describes it, or the Python function itself."""

_KINDS: Mapping[object, str] = MappingProxyType(
    {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
)


def described(tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
    """Tools as OpenAI's API has them. Raises BadSetting for a function whose arguments cannot be described."""
    return [_described(tool) if callable(tool) else tool for tool in tools]


def _described(function: Callable[..., object]) -> Mapping[str, Any]:
    """A function by its signature: arguments without a default are required."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise BadSetting(f"a tool that is a function needs a name, and {function!r} has none: write it with def")
    try:
        hints, signature = get_type_hints(function), inspect.signature(function)
    except (NameError, TypeError, ValueError) as reason:
        raise BadSetting(f"the arguments of {name} cannot be told: {reason}") from None
    properties, required = {}, []
    for argument in signature.parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise BadSetting(f"the argument {argument} of {name} has no single name; a tool takes named arguments")
        if argument.name not in hints:
            raise BadSetting(f"the argument {argument.name} of {name} has no type; write {argument.name}: str, say")
        properties[argument.name] = _schema(hints[argument.name], f"{argument.name} of {name}")
        if argument.default is argument.empty:
            required.append(argument.name)
    schema = {"type": "object", "properties": properties, "required": required}
    about = {"name": name, "description": inspect.getdoc(function) or "", "parameters": schema}
    return {"type": "function", "function": about}


def _schema(kind: Any, what: str) -> dict[str, Any]:
    """The JSON schema of an annotation. Raises BadSetting, naming `what`, for one that has none here."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Literal and all(isinstance(part, str | int) for part in parts):
        return {"enum": list(parts)}
    if origin in (Union, UnionType):
        schemas = [{"type": "null"} if part is NoneType else _schema(part, what) for part in parts]
        return {"anyOf": schemas}
    if origin is list and parts:
        return {"type": "array", "items": _schema(parts[0], what)}
    if origin in _KINDS:
        return {"type": _KINDS[origin]}
    raise BadSetting(
        f"the argument {what} is {kind!r}; one takes str, int, float, bool, list, dict, Literal and unions of them;"
        ' a tool may also be {"type": "function", "function": {"name": …, "parameters": a JSON schema}}'
    )
