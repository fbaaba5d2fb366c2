"""DeepSeek R1 and V3: a name, and an object within a fence; V3.1 has no fence."""

from __future__ import annotations

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects

_CALL = (
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([^\n<]+)(?:<｜tool▁sep｜>|\n)"
    r"\s*(?:```json\n)?(\{.*?\})\s*(?:```\s*)?(?:<｜tool▁call▁end｜>|\Z)"
)


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    return with_objects(text, _CALL)


FORMAT = ToolFormat(
    trigger="<｜tool▁calls▁begin｜>",
    shape="block",
    begin="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    marks=("<｜tool▁calls▁begin｜>",),
    read=read,
    written=WrittenCalls(
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n", "\n```<｜tool▁call▁end｜>", separator="\n"
    ),
)
