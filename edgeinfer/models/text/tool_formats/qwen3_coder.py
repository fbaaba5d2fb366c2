"""Qwen 3 Coder, Qwen 3.5, Nemotron 3, Step 3.5: a tag for the function, and one for every argument."""

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
    trigger="<tool_call>",
    shape="block",
    begin="<tool_call>",
    end="</tool_call>",
    call_end="</function>",
    marks=("<tool_call>", "<function=", "<parameter="),
    strange=("<seed:tool_call>",),
    read=read,
    written=WrittenCalls(
        "\n<function={name}>\n",
        "</function>\n",
        ("<parameter={name}>\n", "\n</parameter>\n"),
        separator="\n",
        each=True,
    ),
)
