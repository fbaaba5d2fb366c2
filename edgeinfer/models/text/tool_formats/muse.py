"""Muse Glimmer: as MiniMax M2, with a prefix in all tags."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat
from edgeinfer.models.text.tool_formats.values import Calls, tagged


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(
        text,
        r'<atem:invoke name="([^"]+)">(.*?)(?:</atem:invoke>|\Z)',
        r'<atem:parameter name="([^"]+)"[^>]*>(.*?)</atem:parameter>',
        parameters,
    )


FORMAT = ToolFormat(
    trigger="<atem:function_calls>",
    shape="block",
    begin="<atem:function_calls>",
    end="</atem:function_calls>",
    call_end="</atem:invoke>",
    marks=("<atem:function_calls>",),
    read=read,
)
