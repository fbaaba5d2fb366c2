"""Apertus: a list of objects, each with the name as its key."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, at_least_one, object_in


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return at_least_one([pair for each in object_in('{"calls": ' + text + "}")["calls"] for pair in each.items()])


FORMAT = ToolFormat(
    trigger="<|tools_prefix|>",
    shape="block",
    begin="<|tools_prefix|>",
    end="<|tools_suffix|>",
    marks=("<|tools_prefix|>",),
    read=read,
    written=WrittenCalls('{"{name}": ', "}", separator=", ", begin="<|tools_prefix|>[", end="]<|tools_suffix|>"),
)
