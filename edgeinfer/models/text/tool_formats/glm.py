"""GLM 4.5 to 4.7, Ling 3, Laguna, Spark 2.5: a name, and tags for keys and values."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(text, r"^\s*([^\s<]+)(.*)", r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", parameters)


FORMAT = ToolFormat(
    trigger="<tool_call>",
    shape="block",
    begin="<tool_call>",
    end="</tool_call>",
    call_end="</tool_call>",
    marks=("<tool_call>", "<arg_key>", "<arg_value>"),
    read=read,
    written=WrittenCalls(
        "{name}{line}",
        argument=("<arg_key>{name}</arg_key>{line}<arg_value>", "</arg_value>{line}"),
        separator="{line}",
        each=True,
    ),
)
