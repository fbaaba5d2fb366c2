"""Gemma 4: a channel for thoughts."""

from __future__ import annotations

from edgeinfer.models.text.thought_formats import ThoughtFormat

FORMAT = ThoughtFormat(
    begin="<|channel>thought\n",
    end="<channel|>",
    marks=("<|channel>thought",),
    anywhere=True,
)
