"""Hunyuan 3: as GLM, with a separator after the name and a suffix in all tags."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged

_CALL = r"<tool_call:opensource>\s*([^\s<]+)(.*?)</tool_call:opensource>"
_ARGUMENT = r"<arg_key:opensource>(.*?)</arg_key:opensource>\s*<arg_value:opensource>(.*?)</arg_value:opensource>"


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(text, _CALL, _ARGUMENT, parameters)


FORMAT = ToolFormat(
    trigger="<tool_calls:opensource>",
    shape="block",
    begin="<tool_calls:opensource>",
    end="</tool_calls:opensource>",
    call_end="</tool_call:opensource>",
    marks=("<tool_calls{}>", "':opensource'"),
    read=read,
    written=WrittenCalls(
        "<tool_call:opensource>{name}<tool_sep:opensource>\n",
        "</tool_call:opensource>\n",
        ("<arg_key:opensource>{name}</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n"),
        begin="<tool_calls:opensource>\n",
    ),
)
