"""Nemotron Nano 2: a list of objects between two tags."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<TOOLCALL>",
    shape="list",
    begin="<TOOLCALL>",
    end="</TOOLCALL>",
    marks=("<TOOLCALL>",),
)
