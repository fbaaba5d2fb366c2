"""Apertus."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<|inner_prefix|>",
    end="<|inner_suffix|>",
    marks=("<|inner_prefix|>",),
    anywhere=True,
)
