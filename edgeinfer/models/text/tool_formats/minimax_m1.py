"""MiniMax M1: objects, each in a line of its own."""

from __future__ import annotations

import json

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, at_least_one


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    calls: Calls = []
    while text.strip():
        call, end = json.JSONDecoder().raw_decode(text.strip())
        calls.append((str(call["name"]), call["arguments"]))
        text = text.strip()[end:]
    return at_least_one(calls)


FORMAT = ToolFormat(
    trigger="<tool_calls>\n",
    shape="block",
    begin="<tool_calls>\n",
    end="</tool_calls>",
    marks=("<tool_calls>", "<beginning_of_sentence>"),
    read=read,
    written=WrittenCalls('{"name": "{name}", "arguments": ', "}\n"),
)
