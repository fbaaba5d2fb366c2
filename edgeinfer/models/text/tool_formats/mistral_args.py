"""Mistral Small 3.2, Devstral, Ministral 3: a name and an object after a special token."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(
        text, r"(?:\[TOOL_CALLS\])?([^\[\]{}]+)(?:\[CALL_ID\][^\[]*)?\[ARGS\](\s*\{.*?)(?=\[TOOL_CALLS\]|\Z)"
    )


FORMAT = ToolFormat(
    trigger="[TOOL_CALLS]",
    shape="block",
    begin="[TOOL_CALLS]",
    end="",
    marks=("[TOOL_CALLS]", "[ARGS]"),
    read=read,
    written=WrittenCalls("{name}[ARGS]", each=True),
)
