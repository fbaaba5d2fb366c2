"""gpt-oss: a channel that is addressed to a function. The marks between name and object are dropped with thoughts'."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(text, r"^([\w.\-]+)[^{]*(\{.*)")


FORMAT = ToolFormat(
    trigger="to=functions.",
    shape="block",
    begin="to=functions.",
    end="<|call|>",
    marks=("<|channel|>", "functions.", "<|call|>"),
    read=read,
    written=WrittenCalls("{name} <|constrain|>json<|message|>", separator=None, begin=" to=functions.", end=""),
    lead="<|channel|>commentary",
)
