"""MiniMax M3: a tag for every argument, and for every part of one, each after a mark."""

from __future__ import annotations

import json
import re
from typing import Any

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat
from edgeinfer.models.text.tool_formats.values import Calls, at_least_one

_MARK = "]<]minimax[>["
_INVOKE = re.compile(r'<invoke name="([^"]+)">')
_TAG = re.compile(r"<(/?)([^<>]+)>(.*)", re.DOTALL)


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    calls: Calls = []
    for part in text.split(f"{_MARK}<invoke ")[1:]:
        begin = _INVOKE.match(f"<invoke {part}")
        if begin is None:
            raise ValueError("no call")
        inside = part.partition(f"{_MARK}</invoke>")[0].split(_MARK)[1:]
        schema = parameters.get(begin[1], {})
        tags = [found for each in inside if (found := _TAG.fullmatch(each)) is not None]
        if len(tags) < len(inside):
            raise ValueError("no tag")
        calls.append((begin[1], _object(_children(tags), schema)))
    return at_least_one(calls)


def _children(tags: list[re.Match[str]]) -> list[tuple[str, str, list[re.Match[str]]]]:
    """Names, texts and inner tags of the outermost elements."""
    found: list[tuple[str, str, list[re.Match[str]]]] = []
    depth = 0
    for tag in tags:
        depth += -1 if tag[1] else 1
        if not tag[1] and depth == 1:
            found.append((tag[2], tag[3], []))
        elif depth or not tag[1]:
            found[-1][2].append(tag)
    if depth:
        raise ValueError("an element without its end")
    return found


def _object(children: list[tuple[str, str, list[re.Match[str]]]], schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    parts = properties if isinstance(properties, dict) else {}
    return {name: _value(text, inner, parts.get(name)) for name, text, inner in children}


def _value(text: str, inner: list[re.Match[str]], schema: Any) -> Any:
    schema = schema if isinstance(schema, dict) else {}
    kind, children = schema.get("type"), _children(inner)
    if kind == "array" or (children and all(name == "item" for name, _, _ in children)):
        return [_value(item, within, schema.get("items")) for _, item, within in children]
    if kind == "object" or children:
        return _object(children, schema)
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


FORMAT = ToolFormat(
    trigger=f"{_MARK}<tool_call>",
    shape="block",
    begin=f"{_MARK}<tool_call>",
    end=f"{_MARK}</tool_call>",
    call_end=f"{_MARK}</invoke>",
    marks=(_MARK,),
    read=read,
)
