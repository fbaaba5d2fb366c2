"""Mistral: a list of objects after a token of its own. Later ones have a name and arguments follow it, and no list."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="[TOOL_CALLS]",
    shape="list",
    begin="[TOOL_CALLS]",
    end="",
    marks=("[TOOL_CALLS]",),
    strange=("[ARGS]",),
)
