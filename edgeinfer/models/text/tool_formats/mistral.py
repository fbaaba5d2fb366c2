"""Mistral: a list of objects after a special token. Later models write a name followed by arguments, without a list."""

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
