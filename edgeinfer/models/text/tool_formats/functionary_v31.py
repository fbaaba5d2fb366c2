"""Functionary 3.1: a tag with the name, and an object."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(text, r"^([^>]+)>(.*)")


FORMAT = ToolFormat(
    trigger="<function=",
    shape="block",
    begin="<function=",
    end="</function>",
    call_end="</function>",
    marks=("<function=", "</function>"),
    strange=("<parameter=", "<tool_call>"),
    read=read,
    written=WrittenCalls("{name}>", each=True),
)
