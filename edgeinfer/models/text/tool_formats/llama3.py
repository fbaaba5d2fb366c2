"""Llama 3.1 and 3.2: the answer is an object, with "parameters" for the arguments."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger='{"name"',
    shape="bare",
    begin="",
    end="",
    marks=('"parameters"', "ipython"),
    separator="; ",
    arguments_key="parameters",
)
