"""Gemma 4: a name and arguments without quotes at their keys, and with a special token around texts."""

from __future__ import annotations

import json
import re

from edgeinfer.models.text.tool_formats import Parameters, ToolFormat, WrittenCalls
from edgeinfer.models.text.tool_formats.values import Calls, with_objects

_QUOTE = '<|"|>'
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)(\s*:)")


def read(text: str, parameters: Parameters) -> Calls:
    """The calls in a block."""
    parts = text.split(_QUOTE)
    for number, part in enumerate(parts):
        parts[number] = json.dumps(part, ensure_ascii=False) if number % 2 else _KEY.sub(r'\1"\2"\3', part)
    return with_objects("".join(parts), r"^\s*call:([^{\s]+)\s*(\{.*\})")


FORMAT = ToolFormat(
    trigger="<|tool_call>",
    shape="block",
    begin="<|tool_call>",
    end="<tool_call|>",
    marks=("<|tool_call>", "<tool_call|>"),
    read=read,
    written=WrittenCalls("call:{name}{", "}", ("{name}:", ""), apart=",", each=True, texts=_QUOTE),
)
