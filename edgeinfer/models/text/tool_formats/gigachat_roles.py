"""GigaChat 3 before 3.1: a call is a message of a role of its own."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import ToolFormat

FORMAT = ToolFormat(
    trigger="<|message_sep|>\n\nfunction call<|role_sep|>\n",
    shape="each",
    begin="<|message_sep|>\n\nfunction call<|role_sep|>\n",
    end="",
    marks=("<|message_sep|>", "<|role_sep|>", "'function call'"),
    separator="",
)
