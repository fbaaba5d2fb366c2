"""Mistral Small 3.2, Devstral, Ministral 3: a name and an object after a special token."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects

_CALL = r"(?:\A|\[TOOL_CALLS\])([^\[\]{}]{1,256})(?:\[CALL_ID\][^\[]*)?\[ARGS\](\s*\{.*?)(?=\[TOOL_CALLS\]|\Z)"
"""A name begins after a mark and has a limit: a text in which there is none is not searched for it everywhere."""


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(text, _CALL)


FORMAT = ToolFormat(
    trigger="[TOOL_CALLS]",
    shape="block",
    begin="[TOOL_CALLS]",
    end="",
    marks=("[TOOL_CALLS]", "[ARGS]"),
    read=read,
    written=WrittenCalls("{name}[ARGS]", each=True),
)
