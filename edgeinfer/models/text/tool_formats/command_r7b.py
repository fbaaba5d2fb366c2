"""Command R7B and Command A: a list of objects between special tokens."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<|START_ACTION|>",
    shape="list",
    begin="<|START_ACTION|>",
    end="<|END_ACTION|>",
    marks=("<|START_ACTION|>",),
    name_key="tool_name",
    arguments_key="parameters",
)
