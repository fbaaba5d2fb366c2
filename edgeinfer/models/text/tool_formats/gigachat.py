"""GigaChat 3: an object after a special token."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<|function_call|>",
    shape="each",
    begin="<|function_call|>",
    end="",
    marks=("<|function_call|>",),
)
