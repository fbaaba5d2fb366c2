"""Solar Open: a number, a name and an object, between special tokens."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(text, r"<\|tool_call:name\|>(.*?)<\|tool_call:args\|>(.*)")


FORMAT = ToolFormat(
    trigger="<|tool_call:begin|>",
    shape="block",
    begin="<|tool_call:begin|>",
    end="<|tool_call:end|>",
    call_end="<|tool_call:end|>",
    marks=("<|tool_call:begin|>", "<|tool_call:args|>"),
    read=read,
    written=WrittenCalls(
        "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>",
        "<|tool_call:end|>",
        begin="<|tool_calls|>",
        end="",
    ),
)
