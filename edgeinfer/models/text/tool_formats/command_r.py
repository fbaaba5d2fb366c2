"""Command R and R+: a list of objects within a fence."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="Action:\n```json\n",
    shape="list",
    begin="Action:\n```json\n",
    end="```",
    marks=("Action:", "tool_name", "directly-answer"),
    name_key="tool_name",
    arguments_key="parameters",
)
