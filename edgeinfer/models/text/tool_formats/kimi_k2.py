"""Kimi K2: a name with a number, and an object."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects

_CALL = (
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<:]+)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|\Z)"
)


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(text, _CALL)


FORMAT = ToolFormat(
    trigger="<|tool_calls_section_begin|>",
    shape="block",
    begin="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    call_end="<|tool_call_end|>",
    marks=("<|tool_calls_section_begin|>",),
    read=read,
    written=WrittenCalls(
        "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>", "<|tool_call_end|>"
    ),
)
