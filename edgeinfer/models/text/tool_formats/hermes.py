"""Hermes 2 Pro, Qwen 2.5 and 3, and many models trained on their form: one object per call, between two tags.

Qwen 3 Coder and GLM 4.5 use the same tags with further tags between them.
"""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<tool_call>",
    shape="each",
    begin="<tool_call>\n",
    end="\n</tool_call>",
    marks=("<tool_call>",),
    strange=("<function=", "<arg_key>", "<mm:think>"),
)
