"""Phi-4 mini: a list of objects between two special tokens."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<|tool_call|>",
    shape="list",
    begin="<|tool_call|>",
    end="<|/tool_call|>",
    marks=("<|tool_call|>", "<|/tool_call|>"),
)
