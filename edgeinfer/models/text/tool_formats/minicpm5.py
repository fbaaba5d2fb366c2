"""MiniCPM 5: a tag with the name, and one for every argument."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged

_ARGUMENT = r'<param name="([^"]+)">(?:<!\[CDATA\[)?(.*?)(?:\]\]>)?</param>'


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(text, r'^([^">]+)">(.*)', _ARGUMENT, parameters)


FORMAT = ToolFormat(
    trigger='<function name="',
    shape="block",
    begin='<function name="',
    end="</function>",
    call_end="</function>",
    marks=('<function name="', '<param name="'),
    read=read,
    written=WrittenCalls('{name}">', argument=('<param name="{name}">', "</param>"), separator="\n", each=True),
)
