"""MiniMax M1: an object per line."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat
from edgeinfer.models.text.tool_formats.values import Calls, object_in


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return [(str(each["name"]), each["arguments"]) for each in map(object_in, text.strip().splitlines())]


FORMAT = ToolFormat(
    trigger="<tool_calls>\n",
    shape="block",
    begin="<tool_calls>\n",
    end="</tool_calls>",
    marks=("<tool_calls>", "<beginning_of_sentence>"),
    read=read,
)
