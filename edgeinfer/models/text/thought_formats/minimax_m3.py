"""MiniMax M3."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<mm:think>",
    end="</mm:think>",
    marks=("<mm:think>",),
)
