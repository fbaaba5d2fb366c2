"""DeepSeek V4: as V3.2, with another name of the outer tag."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged

_CALL = r'<｜DSML｜invoke name="([^"]+)">(.*?)(?:</｜DSML｜invoke>|\Z)'
_ARGUMENT = r'<｜DSML｜parameter name="([^"]+)"[^>]*>(.*?)</｜DSML｜parameter>'


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(text, _CALL, _ARGUMENT, parameters)


FORMAT = ToolFormat(
    trigger="<｜DSML｜tool_calls>",
    shape="block",
    begin="<｜DSML｜tool_calls>",
    end="</｜DSML｜tool_calls>",
    call_end="</｜DSML｜invoke>",
    marks=("｜DSML｜", "tool_calls>"),
    read=read,
    written=WrittenCalls(
        '<｜DSML｜invoke name="{name}">\n',
        "</｜DSML｜invoke>\n",
        ('<｜DSML｜parameter name="{name}" string="{is_text}">', "</｜DSML｜parameter>\n"),
        begin="<｜DSML｜tool_calls>\n",
    ),
)
