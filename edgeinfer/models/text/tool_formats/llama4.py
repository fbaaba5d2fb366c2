"""Llama 4: calls as in Python, between special tokens."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat
from edgeinfer.models.text.tool_formats.values import Calls, python_calls


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return python_calls(text)


FORMAT = ToolFormat(
    trigger="<|python_start|>",
    shape="block",
    begin="<|python_start|>",
    end="<|python_end|>",
    marks=("<|python_start|>",),
    read=read,
)
