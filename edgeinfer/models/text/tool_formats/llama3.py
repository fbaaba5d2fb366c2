"""Llama 3.1 to 4: the answer is an object, with "parameters" for the arguments, or calls as in Python."""

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
    as_python=True,
)
