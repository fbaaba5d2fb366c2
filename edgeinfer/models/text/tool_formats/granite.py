"""Granite 3: a list of objects after a special token. Granite 4 writes as Hermes."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<|tool_call|>",
    shape="list",
    begin="<|tool_call|>",
    end="",
    marks=("<|tool_call|>", "<|end_of_role|>"),
)
