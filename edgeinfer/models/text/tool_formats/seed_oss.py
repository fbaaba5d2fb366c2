"""Seed-OSS: as Qwen 3 Coder, within a tag of its own."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, tagged


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return tagged(
        text,
        r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)",
        r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>",
        parameters,
    )


FORMAT = ToolFormat(
    trigger="<seed:tool_call>",
    shape="block",
    begin="<seed:tool_call>",
    end="</seed:tool_call>",
    call_end="</function>",
    marks=("<seed:tool_call>", "<function=", "<parameter="),
    read=read,
    written=WrittenCalls(
        "\n<function={name}>\n",
        "</function>\n",
        ("<parameter={name}>", "</parameter>\n"),
        separator="\n",
        each=True,
    ),
)
