"""DeepSeek V3.1: as R1 and V3, with an object at once after the name."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.models.text.tool_formats import WrittenCalls, deepseek

FORMAT = replace(
    deepseek.FORMAT,
    marks=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
    strange=("```json",),
    written=WrittenCalls("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
