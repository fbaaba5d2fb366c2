"""Apriel: a list of objects between two tags."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<tool_calls>",
    shape="list",
    begin="<tool_calls>",
    end="</tool_calls>",
    marks=("<tool_calls>[",),
)
