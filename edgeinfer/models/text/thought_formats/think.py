"""Qwen 3, DeepSeek R1, GLM, SmolLM3, Nemotron, Kimi K2, MiniMax M2 and most others."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<think>",
    end="</think>",
    marks=("</think>",),
)
