"""MiniMax M2: tags for functions and arguments within one of its own."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(
        text,
        r'<invoke name="([^"]+)">(.*?)(?:</invoke>|\Z)',
        r'<parameter name="([^"]+)"[^>]*>(.*?)</parameter>',
        parameters,
    )


FORMAT = ToolFormat(
    trigger="<minimax:tool_call>",
    shape="block",
    begin="<minimax:tool_call>",
    end="</minimax:tool_call>",
    call_end="</invoke>",
    marks=("<minimax:tool_call>",),
    read=read,
    written=WrittenCalls(
        '<invoke name="{name}">\n',
        "</invoke>\n",
        ('<parameter name="{name}">', "</parameter>\n"),
        begin="<minimax:tool_call>\n",
    ),
)
