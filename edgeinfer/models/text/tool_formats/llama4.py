"""Llama 4: calls as in Python, between special tokens or alone."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import python_calls

FORMAT = ToolFormat(
    trigger="<|python_start|>",
    shape="block",
    begin="<|python_start|>",
    end="<|python_end|>",
    marks=("<|python_start|>",),
    read=python_calls,
    written=WrittenCalls(
        "{name}(",
        ")",
        ("{name}=", ""),
        apart=", ",
        separator=", ",
        begin="<|python_start|>[",
        end="]<|python_end|>",
        texts="JSON",
    ),
    as_python=True,
)
