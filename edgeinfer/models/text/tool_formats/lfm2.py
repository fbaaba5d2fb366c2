"""LFM2: calls as in Python, between special tokens."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat
from edgeinfer.models.text.tool_formats.values import python_calls, written_python_calls

FORMAT = ToolFormat(
    trigger="<|tool_call_start|>",
    shape="block",
    begin="<|tool_call_start|>",
    end="<|tool_call_end|>",
    marks=("<|tool_call_start|>",),
    read=python_calls,
    write=written_python_calls,
)
