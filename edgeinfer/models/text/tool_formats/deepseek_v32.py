"""DeepSeek V3.2: as MiniMax M2, with a mark in all tags."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged

_CALL = r'<｜DSML｜invoke name="([^"]+)">(.*?)(?:</｜DSML｜invoke>|\Z)'
_ARGUMENT = r'<｜DSML｜parameter name="([^"]+)"[^>]*>(.*?)</｜DSML｜parameter>'


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(text, _CALL, _ARGUMENT, parameters)


FORMAT = ToolFormat(
    trigger="<｜DSML｜function_calls>",
    shape="block",
    begin="<｜DSML｜function_calls>",
    end="</｜DSML｜function_calls>",
    call_end="</｜DSML｜invoke>",
    marks=("｜DSML｜", "function_calls>"),
    read=read,
    written=WrittenCalls(
        '<｜DSML｜invoke name="{name}">\n',
        "</｜DSML｜invoke>\n",
        ('<｜DSML｜parameter name="{name}" string="{is_text}">', "</｜DSML｜parameter>\n"),
        begin="<｜DSML｜function_calls>\n",
    ),
)
