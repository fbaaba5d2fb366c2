"""Kimi K3: tags for calls and arguments, which say the types of values."""

from __future__ import annotations

import html
import json
import re

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, at_least_one, object_in

_CALL = re.compile(r'<\|open\|>call tool="([^"]*)"[^<]*<\|sep\|>(.*?)(?:<\|close\|>call<\|sep\|>|\Z)', re.DOTALL)
_ARGUMENT = re.compile(
    r'<\|open\|>argument key="([^"]*)" type="([^"]*)"<\|sep\|>(.*?)<\|close\|>argument<\|sep\|>', re.DOTALL
)
_OBJECT = re.compile(r"<\|open\|>json[^<]*<\|sep\|>(.*?)<\|close\|>json<\|sep\|>", re.DOTALL)


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    calls: Calls = []
    for name, inside in _CALL.findall(text):
        if "<|open|>" in _OBJECT.sub("", _ARGUMENT.sub("", inside)):
            raise ValueError("an argument without its end")
        whole = _OBJECT.search(inside)
        arguments = {
            html.unescape(key): value if kind == "string" else json.loads(value)
            for key, kind, value in _ARGUMENT.findall(inside)
        }
        calls.append((html.unescape(name), arguments if whole is None else object_in(whole[1])))
    return at_least_one(calls)


FORMAT = ToolFormat(
    trigger="<|open|>tools<|sep|>",
    shape="block",
    begin="<|open|>tools<|sep|>",
    end="<|close|>tools<|sep|>",
    call_end="<|close|>call<|sep|>",
    marks=("<|open|>", "<|close|>", "open_tag('tools')"),
    read=read,
    written=WrittenCalls(
        '<|open|>call tool="{name}" index="{number}"<|sep|>',
        "<|close|>call<|sep|>",
        ('<|open|>argument key="{name}" type="{type}"<|sep|>', "<|close|>argument<|sep|>"),
    ),
    lead="<|open|>response<|sep|><|close|>response<|sep|>",
)
