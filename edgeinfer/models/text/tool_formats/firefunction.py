"""Firefunction 2: a list of objects after a word."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="functools",
    shape="list",
    begin="functools",
    end="",
    marks=("functools[",),
)
